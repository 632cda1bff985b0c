//! Who is compared, and the tables.

use std::rc::Rc;

use range_alloc::RangeAllocator;
use vulkano::memory::allocator::suballocator::FreeListAllocator;

use crate::lap::{Lap, best};
use crate::peer::{Peer, Region};
use crate::peers::buddy::Frames;
use crate::peers::cubecl::CubeCl;
use crate::peers::gpu_alloc::GpuAlloc;
use crate::peers::gpu_allocator::GpuAllocator;
use crate::peers::nothing::Nothing;
use crate::peers::vk_mem::Virtual;
use crate::peers::xalloc::Tlsf;
use crate::serve::Memory;
use crate::shared::{Caller, Locked, Own, OwnGrowing, Recipe};
use crate::table::{number, print};
use crate::traces::{NAMES, SEED, Trace};
use crate::{crowd, hits, instructions, serve, threads};

/// Rounds of which the best counts.
const ROUNDS: usize = 25;
/// Nanoseconds a request, from which on instructions are not counted: that takes
/// fifty times as long.
const SLOW: f64 = 3_000.0;
const THREADS: [usize; 4] = [1, 2, 4, 8];
const CROWDS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// What one form of an allocator can be asked to do.
struct Form {
    serve: fn(&Rc<Trace>) -> Lap,
    twice: fn(&Trace),
    memory: fn(&Trace) -> Memory,
    crowd: fn(usize) -> Option<Lap>,
    among: fn(usize) -> Option<()>,
}

impl Form {
    fn of<P: Peer>() -> Self {
        Self {
            serve: serve::laps::<P>,
            twice: serve::twice::<P>,
            memory: serve::memory::<P>,
            crowd: crowd::laps::<P>,
            among: crowd::among::<P>,
        }
    }
}

/// An allocator: by itself, and as threads share it.
struct Contestant {
    name: &'static str,
    bare: Option<Form>,
    shared: Option<Form>,
    threads: Option<fn(usize) -> Lap>,
}

impl Contestant {
    /// One that is made to be shared.
    fn own<R: Recipe>() -> Self {
        Self {
            name: R::NAME,
            bare: None,
            shared: Some(Form::of::<Caller<R>>()),
            threads: Some(threads::laps::<R>),
        }
    }

    fn peer<P: Peer>() -> Self {
        Self {
            name: P::NAME,
            bare: Some(Form::of::<P>()),
            shared: Some(Form::of::<Caller<Locked<P>>>()),
            threads: Some(threads::laps::<Locked<P>>),
        }
    }

    fn all() -> Vec<Self> {
        vec![
            Self::own::<Own<true>>(),
            Self::own::<Own<false>>(),
            Self::own::<OwnGrowing>(),
            Self::peer::<Region<offset_allocator::Allocator>>(),
            Self::peer::<Region<RangeAllocator<usize>>>(),
            Self::peer::<Region<Tlsf>>(),
            Self::peer::<Region<Virtual>>(),
            Self::peer::<Region<FreeListAllocator>>(),
            Self::peer::<Region<Frames>>(),
            Self::peer::<GpuAllocator>(),
            Self::peer::<GpuAlloc<true>>(),
            Self::peer::<GpuAlloc<false>>(),
            Self::peer::<CubeCl>(),
            Self {
                shared: None,
                threads: None,
                ..Self::peer::<Region<Nothing>>()
            },
        ]
    }

    /// The forms there are, with the names that `one` knows them by.
    fn forms(&self) -> [Option<(String, &Form)>; 2] {
        let bare = self.bare.as_ref();
        let bare = bare.map(|form| (format!("{}, bare", self.name), form));
        let shared = self.shared.as_ref();
        [bare, shared.map(|form| (self.name.to_string(), form))]
    }
}

fn trace(name: &str) -> Option<Trace> {
    Trace::named(name, SEED)
}

fn head(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}

pub(crate) fn list() {
    for contestant in Contestant::all() {
        for (name, _) in contestant.forms().into_iter().flatten() {
            println!("{name}");
        }
    }
}

/// Does something with the form of a name.
fn with_form<T>(name: &str, act: impl FnOnce(&Form) -> T) -> Option<T> {
    let contestants = Contestant::all();
    let mut forms = contestants.iter().flat_map(Contestant::forms).flatten();
    let (_, form) = forms.find(|(of, _)| of == name)?;
    Some(act(form))
}

pub(crate) fn one(name: &str, trace_name: &str) -> Option<()> {
    let trace = trace(trace_name)?;
    with_form(name, |form| (form.twice)(&trace))
}

pub(crate) fn among(name: &str, count: &str) -> Option<()> {
    let count = count.parse().ok()?;
    with_form(name, |form| (form.among)(count))?
}

pub(crate) fn hit(name: &str, size: &str, count: &str) -> Option<()> {
    hits::some(name, size.parse().ok()?, count.parse().ok()?);
    Some(())
}

/// What serving a trace costs one form, for each request.
struct Cost {
    ns: Option<f64>,
    instructions: Option<f64>,
}

/// The costs of all forms, in the order of [`Contestant::forms`].
fn costs(contestants: &[Contestant], name: &str, trace: &Rc<Trace>) -> Vec<Cost> {
    let forms: Vec<_> = contestants.iter().flat_map(Contestant::forms).collect();
    let laps = forms.iter().map(|form| {
        let (_, form) = form.as_ref()?;
        Some((form.serve)(trace))
    });
    let times = best(&mut laps.collect::<Vec<_>>(), ROUNDS);
    let cost = |(ns, form): (Option<f64>, &Option<(String, &Form)>)| Cost {
        ns,
        instructions: form.as_ref().and_then(|(of, _)| {
            ns.filter(|&ns| ns < SLOW)?;
            let count = instructions::of(&["one", of, name])?;
            Some(count as f64 / trace.steps().len() as f64)
        }),
    };
    times.into_iter().zip(&forms).map(cost).collect()
}

pub(crate) fn traces() {
    let contestants = Contestant::all();
    for name in NAMES {
        let trace = Rc::new(trace(name).expect("a trace"));
        let (steps, peak) = (trace.steps().len(), trace.peak_bytes());
        println!(
            "`{name}`: {steps} requests, at most {} MiB live.\n",
            peak >> 20
        );
        let costs = costs(&contestants, name, &trace);
        let own = serve::memory::<Caller<Own<true>>>(&trace).least;
        let row = |(contestant, costs): (&Contestant, &[Cost])| {
            let shared = contestant.shared.as_ref();
            let memory = shared.map(|form| (form.memory)(&trace));
            let least = memory.as_ref().and_then(|memory| memory.least);
            let over = |of: fn(&Memory) -> Option<usize>| {
                let bytes = memory.as_ref().and_then(of)?;
                Some(bytes as f64 / peak as f64)
            };
            let mut cells = vec![contestant.name.to_string()];
            for cost in costs {
                cells.push(number(cost.ns, 1));
                cells.push(number(cost.instructions, 0));
            }
            cells.push(number(over(|memory| memory.least), 3));
            cells.push(number(over(|memory| memory.taken), 3));
            let fragmentation = memory.as_ref().and_then(|memory| memory.fragmentation);
            cells.push(number(fragmentation, 3));
            let bytes = least.zip(own).map(|(least, own)| least.max(own));
            let pools =
                bytes.and_then(|bytes| serve::fragmentation::<Caller<Own<true>>>(&trace, bytes));
            cells.push(number(pools, 3));
            cells
        };
        let rows: Vec<_> = contestants.iter().zip(costs.chunks(2)).map(row).collect();
        let columns = [
            "allocator",
            "bare, ns",
            "instructions",
            "shared, ns",
            "instructions",
            "least",
            "taken",
            "fragmentation",
            "the pool's there",
        ];
        print(&head(&columns), &rows);
    }
}

/// A name, and what makes laps of a count.
type Row = (String, Box<dyn Fn(usize) -> Option<Lap>>);

/// A column of laps for each of `counts`, with the allocators as rows. Returns what the
/// last column took, in nanoseconds.
fn by_count(
    counts: &[usize],
    title: impl Fn(usize) -> String,
    rows: &[Row],
    cell: impl Fn(Option<f64>) -> String,
) -> Vec<Option<f64>> {
    let mut last = Vec::new();
    let mut cells: Vec<Vec<String>> = rows.iter().map(|(name, _)| vec![name.clone()]).collect();
    for &count in counts {
        let mut laps: Vec<_> = rows.iter().map(|(_, lap)| lap(count)).collect();
        last = best(&mut laps, ROUNDS);
        for (cells, ns) in cells.iter_mut().zip(&last) {
            cells.push(cell(*ns));
        }
    }
    print(&head_by_count(counts, title), &cells);
    last
}

fn head_by_count(counts: &[usize], title: impl Fn(usize) -> String) -> Vec<String> {
    let titles = counts.iter().map(|&count| title(count));
    let first = ["allocator".to_string()].into_iter();
    first.chain(titles).collect()
}

pub(crate) fn threads() {
    println!("Millions of requests a second, of all threads together.\n");
    let mut rows: Vec<Row> = Vec::new();
    for contestant in Contestant::all() {
        if let Some(laps) = contestant.threads {
            rows.push((
                contestant.name.to_string(),
                Box::new(move |count| Some(laps(count))),
            ));
        }
    }
    let title = |count| match count {
        1 => "1 thread".to_string(),
        _ => format!("{count} threads"),
    };
    let rate = |ns: Option<f64>| number(ns.map(|ns| 1e3 / ns), 2);
    by_count(&THREADS, title, &rows, rate);
}

pub(crate) fn crowd() {
    println!("Nanoseconds a request among so many live blocks.\n");
    let mut rows: Vec<Row> = Vec::new();
    for contestant in Contestant::all() {
        for (name, form) in contestant.forms().into_iter().flatten() {
            let laps = form.crowd;
            rows.push((name, Box::new(laps)));
        }
    }
    let title = |count: usize| number(Some(count as f64), 0);
    let last = by_count(&CROWDS, title, &rows, |ns| number(ns, 0));

    println!("Instructions of such a request.\n");
    let quick = rows.iter().zip(last);
    let quick = quick.filter(|(_, ns)| ns.is_some_and(|ns| ns < SLOW));
    let cells = quick.map(|((name, _), _)| {
        let counts = CROWDS.map(|count| number(crowd::instructions(name, count), 0));
        [name.clone()].into_iter().chain(counts).collect()
    });
    print(&head_by_count(&CROWDS, title), &cells.collect::<Vec<_>>());
}

pub(crate) fn hits() {
    println!("Allocating and freeing a size that was freed before, ns a pair, and instructions.\n");
    let mut columns = vec!["bytes".to_string()];
    for name in hits::NAMES {
        columns.extend([format!("{name}, ns"), "instructions".into()]);
    }
    let row = |size: usize| {
        let laps = hits::NAMES.map(|name| Some(hits::laps(name, size)));
        let times = best(&mut laps.into_iter().collect::<Vec<_>>(), ROUNDS);
        let mut cells = vec![number(Some(size as f64), 0)];
        for (name, ns) in hits::NAMES.into_iter().zip(times) {
            cells.push(number(ns, 1));
            cells.push(number(hits::instructions(name, size), 0));
        }
        cells
    };
    print(&columns, &hits::SIZES.map(row));
}
