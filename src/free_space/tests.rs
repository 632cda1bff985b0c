//! Free space against a naive model: an array with an entry for each unit.
//!
//! Rank 0. Part of `free_space`.

use proptest::prelude::*;

use super::*;

const UNIT: usize = 256;

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Free(usize),
    /// The block that starts at this address.
    Used(usize),
}

#[derive(Debug)]
struct ModelSegment {
    start: usize,
    units: Vec<Unit>,
}

/// Segments in the order of addresses, and lots by number.
#[derive(Debug, Default)]
struct Model {
    segments: Vec<(Segment, ModelSegment)>,
    lots: Vec<Lot>,
}

impl Model {
    /// The free runs of a lot: size and start, in units and bytes.
    fn runs(&self, lot: usize) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        for (_, segment) in &self.segments {
            let mut len = 0;
            for at in 0..=segment.units.len() {
                if segment.units.get(at) == Some(&Unit::Free(lot)) {
                    len += 1;
                } else if len > 0 {
                    runs.push((len, segment.start + (at - len) * UNIT));
                    len = 0;
                }
            }
        }
        runs.sort_unstable();
        runs
    }

    /// Where the best fits are: in which blocks, and from where on.
    fn best(&self, lot: usize, units: usize, align: usize, end: End) -> Vec<usize> {
        let fits = self.runs(lot).into_iter().filter_map(|(len, start)| {
            let room = (len * UNIT).checked_sub(units * UNIT)?;
            let mut places = (start..=start + room).step_by(UNIT);
            let mut aligned = places.by_ref().filter(|place| place % align == 0);
            let place = match end {
                End::Low => aligned.next(),
                End::High => aligned.last(),
            };
            Some((len, place?))
        });
        let fits: Vec<_> = fits.collect();
        let smallest = fits.iter().map(|(len, _)| *len).min();
        let best = fits.into_iter().filter(|(len, _)| Some(*len) == smallest);
        best.map(|(_, start)| start).collect()
    }

    fn set(&mut self, start: usize, units: usize, to: Unit) {
        let segment = self.segments.iter_mut().find_map(|(_, segment)| {
            let at = start.checked_sub(segment.start)? / UNIT;
            segment.units.get_mut(at..at + units)
        });
        segment.unwrap().fill(to);
    }

    fn blocks(&self) -> Vec<(usize, usize)> {
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for unit in self.segments.iter().flat_map(|(_, segment)| &segment.units) {
            match (unit, blocks.last_mut()) {
                (Unit::Used(start), Some((last, units))) if last == start => *units += 1,
                (Unit::Used(start), _) => blocks.push((*start, 1)),
                _ => {}
            }
        }
        blocks
    }

    /// The segments that are free for everybody.
    fn whole(&self) -> Vec<Segment> {
        let is_whole = |segment: &ModelSegment| {
            let mut units = segment.units.iter();
            units.all(|unit| *unit == Unit::Free(0))
        };
        let whole = self.segments.iter().filter(|(_, model)| is_whole(model));
        whole.map(|(segment, _)| *segment).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        lot: usize,
        units: usize,
        align: usize,
        end: End,
    },
    Give {
        block: usize,
        lot: usize,
    },
    NewLot,
    Open {
        lot: usize,
    },
    Add {
        units: usize,
        gap: usize,
    },
    Remove {
        segment: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let align = prop_oneof![6 => Just(0), 1 => 1..5_usize].prop_map(|log2| UNIT << log2);
    let end = prop_oneof![Just(End::Low), Just(End::High)];
    prop_oneof![
        24 => (0..4_usize, 1..40_usize, align, end)
            .prop_map(|(lot, units, align, end)| Step::Take { lot, units, align, end }),
        20 => (any::<usize>(), 0..4_usize).prop_map(|(block, lot)| Step::Give { block, lot }),
        1 => Just(Step::NewLot),
        1 => (1..4_usize).prop_map(|lot| Step::Open { lot }),
        2 => (1..300_usize, 0..2_usize).prop_map(|(units, gap)| Step::Add { units, gap }),
        1 => any::<usize>().prop_map(|segment| Step::Remove { segment }),
    ]
}

/// Does a step on both, and checks that they agree on what comes of it.
fn apply(space: &mut FreeSpace<usize>, model: &mut Model, next: &mut usize, step: Step) {
    let lots = model.lots.len();
    match step {
        Step::Take {
            lot,
            units,
            align,
            end,
        } => {
            let lot = lot % lots;
            let best = model.best(lot, units, align, end);
            let taken = space.take(model.lots[lot], (units * UNIT, align), end);
            assert_eq!(taken.is_none(), best.is_empty());
            if let Some(start) = taken.map(|taken| taken.base + taken.offset) {
                assert!(best.contains(&start), "{start} of {best:?}");
                model.set(start, units, Unit::Used(start));
            }
        }
        Step::Give { block, lot } => {
            let (blocks, lot) = (model.blocks(), lot % lots);
            let Some(&(start, units)) = blocks.get(block % blocks.len().max(1)) else {
                assert_eq!(space.give(*next, model.lots[lot]), None);
                return;
            };
            assert_eq!(space.size_of(start), Some(units * UNIT));
            assert_eq!(space.give(start + UNIT / 2, model.lots[lot]), None);
            let given = space.give(start, model.lots[lot]);
            assert_eq!(space.give(start, model.lots[lot]), None);
            model.set(start, units, Unit::Free(lot));
            let mut segments = model.segments.iter().map(|(_, segment)| segment);
            let own = segments
                .find(|own| (own.start..own.start + own.units.len() * UNIT).contains(&start));
            let one = own
                .unwrap()
                .units
                .iter()
                .all(|unit| *unit == Unit::Free(lot));
            assert_eq!(given, Some(one));
        }
        Step::NewLot if lots < 4 => model.lots.push(space.new_lot().unwrap()),
        Step::NewLot => {}
        Step::Open { lot } if lot < lots => {
            space.open(model.lots.remove(lot));
            for unit in model
                .segments
                .iter_mut()
                .flat_map(|(_, own)| &mut own.units)
            {
                *unit = match *unit {
                    Unit::Free(other) if other == lot => Unit::Free(0),
                    Unit::Free(other) if other > lot => Unit::Free(other - 1),
                    other => other,
                };
            }
        }
        Step::Open { .. } => {}
        Step::Add { units, gap } => {
            // Without a gap two segments touch, and are still two.
            let start = *next + gap * UNIT;
            let segment = space.add(start, units * UNIT, start).unwrap();
            *next = start + units * UNIT;
            let units = vec![Unit::Free(0); units];
            model
                .segments
                .push((segment, ModelSegment { start, units }));
        }
        Step::Remove { segment } => {
            let at = segment % model.segments.len().max(1);
            let Some(&(segment, ref own)) = model.segments.get(at) else {
                return;
            };
            let start = model.whole().contains(&segment).then_some(own.start);
            assert_eq!(space.remove(segment), start);
            if start.is_some() {
                model.segments.remove(at);
            }
        }
    }
}

/// Checks that both know the same.
fn agree(space: &FreeSpace<usize>, model: &Model) {
    for (number, lot) in model.lots.iter().enumerate() {
        let runs = model.runs(number);
        let units: usize = runs.iter().map(|(len, _)| len).sum();
        assert_eq!(space.bytes_of(*lot), units * UNIT);
        let largest = runs.last().map_or(0, |(len, _)| *len);
        assert_eq!(space.largest_of(*lot), largest * UNIT);
    }
    let used: usize = model.blocks().iter().map(|(_, units)| units * UNIT).sum();
    assert_eq!(space.used_bytes(), used);
    assert_eq!(space.segments(), model.segments.len());
    let number = |segment: &Segment| segment.0;
    let [mut found, mut expected] = [space.whole(), model.whole()];
    found.sort_by_key(number);
    expected.sort_by_key(number);
    assert_eq!(found, expected);
}

proptest! {
    // https://github.com/zakarumych/gpu-alloc/issues/45
    // https://github.com/zakarumych/gpu-alloc/issues/48
    // https://github.com/tracel-ai/cubecl/issues/1384
    // https://github.com/tracel-ai/cubecl/issues/1401
    // 256 times 400 steps: more than 100,000 in all.
    #[test]
    fn it_does_what_a_naive_model_does(steps in prop::collection::vec(step(), 400)) {
        let mut space = FreeSpace::new();
        let mut model = Model { lots: vec![FreeSpace::<usize>::COMMON], ..Model::default() };
        let mut next = UNIT * 1000;
        for step in steps {
            apply(&mut space, &mut model, &mut next, step);
            agree(&space, &model);
        }

        // All that is given back joins to what was there at first.
        for (start, _) in model.blocks() {
            space.give(start, FreeSpace::<usize>::COMMON).unwrap();
        }
        for lot in model.lots.drain(1..) {
            space.open(lot);
        }
        prop_assert_eq!(space.whole().len(), model.segments.len());
        prop_assert_eq!(space.used_bytes(), 0);
        prop_assert_eq!(space.nodes.len(), 2 * model.segments.len());
    }
}

#[test]
fn terabytes_and_the_ends_of_the_address_space_are_no_trouble() {
    let mut space = FreeSpace::new();
    let tebibyte = 1_usize << 40;
    let top = usize::MAX - tebibyte + 1 - UNIT;
    space.add(UNIT, 2 * tebibyte, UNIT).unwrap();
    space.add(top, tebibyte, top).unwrap();

    let low = space
        .take(FreeSpace::<usize>::COMMON, (2 * tebibyte, UNIT), End::Low)
        .unwrap();
    let none = space.take(
        FreeSpace::<usize>::COMMON,
        (tebibyte, usize::MAX / 2 + 1),
        End::Low,
    );
    let high = space
        .take(
            FreeSpace::<usize>::COMMON,
            (tebibyte - UNIT, UNIT),
            End::Low,
        )
        .unwrap();

    assert_eq!(none, None);
    assert_eq!((low.base, low.offset), (UNIT, 0));
    assert_eq!((high.base, high.offset), (top, 0));
    assert_eq!(space.largest_of(FreeSpace::<usize>::COMMON), UNIT);
    assert_eq!(space.used_bytes(), 3 * tebibyte - UNIT);
}
