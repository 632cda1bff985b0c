//! Which bytes of a file go where, in the order of the file.
//!
//! Rank 9. Part of `weights`.

use std::io::{self, Read};

use crate::error::{Error, ErrorKind, Result};
use crate::plan::{MemoryPlan, Placement};
use crate::weights::header::WeightsHeader;

/// Tensors that follow one another both in the file and in a buffer. They are
/// uploaded at once, with zeros where the buffer has gaps between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// From the first byte of the first tensor to the last of the last.
    pub(super) place: Placement,
    parts: Vec<Part>,
}

/// A gap, then a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    gap: usize,
    size: usize,
}

/// The runs of a file for the placements of its tensors, which are checked: one
/// each, as long as the tensor, that overlap no other.
pub(super) fn runs(header: &WeightsHeader, plan: &MemoryPlan) -> Result<Vec<Run>> {
    let placements = plan.placements();
    check_sizes(header, plan)?;
    let ranks = ranks(placements)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut previous: Option<usize> = None;
    for (placement, rank) in placements.iter().zip(ranks) {
        let Some(rank) = rank else {
            continue;
        };
        let follows = previous.and_then(|rank| rank.checked_add(1)) == Some(rank);
        previous = Some(rank);
        let last = runs.last_mut().filter(|run| {
            // The next rank may be that of another buffer.
            follows && run.place.memory_id == placement.memory_id
        });
        match last {
            Some(run) => run.extend(placement),
            None => runs.push(Run::new(placement)),
        }
    }
    Ok(runs)
}

impl Run {
    fn new(placement: &Placement) -> Self {
        Self {
            place: *placement,
            parts: vec![Part {
                gap: 0,
                size: placement.size,
            }],
        }
    }

    fn extend(&mut self, placement: &Placement) {
        let end = self.place.offset.saturating_add(self.place.size);
        let gap = placement.offset.saturating_sub(end);
        let size = placement.size;
        self.place.size = self.place.size.saturating_add(gap).saturating_add(size);
        self.parts.push(Part { gap, size });
    }

    /// How many of its first `done` bytes are of tensors.
    pub(super) fn tensor_bytes(&self, done: u64) -> u64 {
        let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        let mut rest = done;
        let mut sum = 0_u64;
        for part in &self.parts {
            rest = rest.saturating_sub(wide(part.gap));
            sum = sum.saturating_add(rest.min(wide(part.size)));
            rest = rest.saturating_sub(wide(part.size));
        }
        sum
    }

    /// The bytes of the run, those of its tensors from `source`.
    pub(super) fn bytes<'a, R: Read>(&'a self, source: &'a mut Counted<R>) -> RunBytes<'a, R> {
        RunBytes {
            source,
            parts: self.parts.iter(),
            gap: 0,
            data: 0,
        }
    }
}

/// A reader that counts, and knows when it came to its end.
#[derive(Debug)]
pub(super) struct Counted<R> {
    pub(super) inner: R,
    pub(super) count: u64,
    pub(super) ended: bool,
}

/// See [`Run::bytes`].
#[derive(Debug)]
pub(super) struct RunBytes<'a, R> {
    source: &'a mut Counted<R>,
    parts: std::slice::Iter<'a, Part>,
    gap: usize,
    data: usize,
}

impl<R: Read> Read for RunBytes<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.gap == 0 && self.data == 0 {
            let Some(part) = self.parts.next() else {
                return Ok(0);
            };
            (self.gap, self.data) = (part.gap, part.size);
        }
        let of_gap = self.gap != 0;
        let left = if of_gap {
            &mut self.gap
        } else {
            &mut self.data
        };
        let most = into.len().min(*left);
        let Some(into) = into.get_mut(..most) else {
            return Ok(0);
        };
        let len = if of_gap {
            into.fill(0);
            most
        } else {
            self.source.inner.read(into)?
        };
        *left = left
            .checked_sub(len)
            .filter(|_| len <= most)
            .ok_or_else(|| io::Error::other("the reader says that it read more than it could"))?;
        if !of_gap {
            self.source.ended = len == 0 && most != 0;
            let len = u64::try_from(len).unwrap_or(u64::MAX);
            self.source.count = self.source.count.saturating_add(len);
        }
        Ok(len)
    }
}

fn check_sizes(header: &WeightsHeader, plan: &MemoryPlan) -> Result<()> {
    let (tensors, placements) = (header.tensors(), plan.placements());
    if tensors.len() != placements.len() {
        return Err(ErrorKind::CountMismatch {
            what: "placements",
            expected: tensors.len(),
            found: placements.len(),
        }
        .into());
    }
    for (index, (tensor, placement)) in tensors.iter().zip(placements).enumerate() {
        let id = usize::try_from(placement.memory_id).ok();
        let buffer = id.and_then(|id| plan.buffers().get(id));
        if let Some(buffer) = buffer.filter(|_| tensor.size() != placement.size) {
            let differ = Error::from(ErrorKind::LengthMismatch {
                device: buffer.device,
                expected: tensor.size(),
                found: placement.size,
            });
            return Err(differ.at("placement", index));
        }
    }
    Ok(())
}

/// The position of each placement that has bytes among all of them, by buffer and
/// offset.
fn ranks(placements: &[Placement]) -> Result<Vec<Option<usize>>> {
    let mut order: Vec<(usize, &Placement)> = placements
        .iter()
        .enumerate()
        .filter(|(_, placement)| placement.size != 0)
        .collect();
    order.sort_unstable_by_key(|(_, placement)| (placement.memory_id, placement.offset));
    for (&(first, a), &(second, b)) in order.iter().zip(order.iter().skip(1)) {
        let end = a.offset.saturating_add(a.size);
        if a.memory_id == b.memory_id && b.offset < end {
            let (first, second) = (first.min(second), first.max(second));
            return Err(ErrorKind::Overlap { first, second }.into());
        }
    }
    let mut ranks = vec![None; placements.len()];
    for (rank, (index, _)) in order.into_iter().enumerate() {
        if let Some(slot) = ranks.get_mut(index) {
            *slot = Some(rank);
        }
    }
    Ok(ranks)
}
