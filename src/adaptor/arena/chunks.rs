//! The chunks of one device, and how far each is used.
//!
//! Rank 4. Part of `adaptor::arena`. Imports the words.
//!
//! Chunks stand in the order of use: the current one is bumped, those after it are
//! empty. Each chunk is divided where checkpoints were taken, and each division
//! counts its live blocks, so that whether all is freed since a checkpoint is known
//! without a list of blocks.

use crate::address::DevicePtr;
use crate::layout::DeviceLayout;

/// A block of the layer below that blocks are cut from, one after another.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) ptr: DevicePtr,
    pub(super) layout: DeviceLayout,
    used: usize,
    /// At least one; starts do not fall.
    divisions: Vec<Division>,
}

/// The part of a chunk from one checkpoint to the next.
#[derive(Debug)]
struct Division {
    /// The checkpoint that it begins at, or 0 for the first.
    id: u64,
    start: usize,
    live: usize,
}

/// What a device has.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// Those up to `current` may hold blocks; those after it are empty.
    chunks: Vec<Chunk>,
    current: usize,
    checkpoints: u64,
    in_use: usize,
}

impl Chunk {
    pub(super) fn new(ptr: DevicePtr, layout: DeviceLayout) -> Self {
        let first = Division {
            id: 0,
            start: 0,
            live: 0,
        };
        Self {
            ptr,
            layout,
            used: 0,
            divisions: vec![first],
        }
    }

    pub(super) fn live(&self) -> usize {
        count(&self.divisions)
    }

    /// Whether nothing is in it and no checkpoint was taken in it.
    fn is_idle(&self) -> bool {
        self.divisions.len() == 1 && self.live() == 0
    }

    /// How far into the chunk `ptr` points, if it does.
    fn offset(&self, ptr: DevicePtr) -> Option<usize> {
        let offset = ptr.addr().checked_sub(self.ptr.addr())?;
        (offset < self.layout.size()).then_some(offset)
    }

    /// Where the next block of this alignment would be.
    fn next(&self, align: usize) -> Option<usize> {
        let addr = self.ptr.addr().checked_add(self.used)?;
        let skipped = addr.wrapping_neg() & align.wrapping_sub(1);
        self.used.checked_add(skipped)
    }

    fn bump(&mut self, layout: DeviceLayout) -> Option<DevicePtr> {
        let offset = self.next(layout.align())?;
        let end = offset.checked_add(layout.size())?;
        if end > self.layout.size() {
            return None;
        }
        let ptr = self.ptr.checked_add(offset)?;
        let last = self.divisions.last_mut()?;
        last.live = last.live.saturating_add(1);
        self.used = end;
        Some(ptr)
    }

    /// Counts the block at `offset` no longer. False if there is none.
    fn give(&mut self, offset: usize, size: usize) -> bool {
        let after = self.divisions.partition_point(|part| part.start <= offset);
        let is_last = after == self.divisions.len();
        let at = after.saturating_sub(1);
        let Some(division) = self.divisions.get_mut(at).filter(|part| part.live > 0) else {
            return false;
        };
        division.live = division.live.saturating_sub(1);
        if is_last && offset.checked_add(size) == Some(self.used) {
            self.used = offset;
        }
        self.settle();
        true
    }

    /// Brings the end of what is used down over divisions that are empty.
    fn settle(&mut self) {
        let empty = self
            .divisions
            .iter()
            .rev()
            .take_while(|part| part.live == 0);
        let Some(floor) = empty.last().map(|part| part.start) else {
            return;
        };
        self.used = floor;
        let empty = self.divisions.iter_mut().rev();
        for division in empty.take_while(|part| part.live == 0) {
            division.start = floor;
        }
    }
}

impl Chunks {
    /// Cuts a block from the current chunk, or from another that is empty.
    pub(super) fn place(&mut self, layout: DeviceLayout) -> Option<DevicePtr> {
        let current = self.chunks.get_mut(self.current)?;
        let ptr = match current.bump(layout) {
            Some(ptr) => ptr,
            None => {
                self.go_on(layout)?;
                self.chunks.get_mut(self.current)?.bump(layout)?
            }
        };
        self.in_use = self.in_use.saturating_add(layout.size());
        Some(ptr)
    }

    /// Makes an idle chunk current that has room for `layout`.
    fn go_on(&mut self, layout: DeviceLayout) -> Option<()> {
        let fits = |chunk: &Chunk| {
            let end = chunk.next(layout.align())?.checked_add(layout.size())?;
            (end <= chunk.layout.size()).then_some(())
        };
        let found =
            self.chunks.iter().enumerate().find(|(at, chunk)| {
                *at != self.current && chunk.is_idle() && fits(chunk).is_some()
            });
        let (at, _) = found?;
        let chunk = self.chunks.remove(at);
        if at < self.current {
            self.current = self.current.saturating_sub(1);
        }
        self.put_next(chunk);
        Some(())
    }

    /// Puts a chunk after the current one, and makes it current.
    pub(super) fn put_next(&mut self, chunk: Chunk) {
        let next = match self.chunks.is_empty() {
            true => 0,
            false => self.current.saturating_add(1).min(self.chunks.len()),
        };
        self.chunks.insert(next, chunk);
        self.current = next;
    }

    /// Puts an idle chunk after all others.
    pub(super) fn put_last(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
    }

    /// Counts a block no longer. False if it is in no chunk.
    pub(super) fn give(&mut self, ptr: DevicePtr, layout: DeviceLayout) -> bool {
        // The current chunk is the likeliest, then those before it.
        let likely = self.chunks.iter_mut().rev();
        let given = likely
            .filter_map(|chunk| chunk.offset(ptr).map(|offset| (chunk, offset)))
            .next()
            .is_some_and(|(chunk, offset)| chunk.give(offset, layout.size()));
        if given {
            self.in_use = self.in_use.saturating_sub(layout.size());
            self.step_back();
        }
        given
    }

    /// Goes back from chunks that are idle to those that have room before them.
    fn step_back(&mut self) {
        while self.current > 0 && self.chunks.get(self.current).is_none_or(Chunk::is_idle) {
            self.current = self.current.saturating_sub(1);
        }
    }

    /// Marks where the next block would be. 0 stands for the very beginning.
    pub(super) fn checkpoint(&mut self) -> u64 {
        let Some(chunk) = self.chunks.get_mut(self.current) else {
            return 0;
        };
        self.checkpoints = self.checkpoints.saturating_add(1);
        chunk.divisions.push(Division {
            id: self.checkpoints,
            start: chunk.used,
            live: 0,
        });
        self.checkpoints
    }

    /// The chunk and the division that a checkpoint begins.
    fn find(&self, id: u64) -> Option<(usize, usize)> {
        self.chunks.iter().enumerate().find_map(|(at, chunk)| {
            let division = chunk.divisions.iter().position(|part| part.id == id)?;
            Some((at, division))
        })
    }

    /// How many blocks are live of those made since a checkpoint.
    pub(super) fn live_since(&self, id: u64) -> usize {
        let (at, division) = match id {
            0 => (0, 0),
            id => self.find(id).unwrap_or((0, 0)),
        };
        let here = self
            .chunks
            .get(at)
            .and_then(|chunk| chunk.divisions.get(division..));
        let later = self.chunks.iter().skip(at.saturating_add(1));
        let later = later.map(Chunk::live).fold(0, usize::saturating_add);
        here.map_or(0, count).saturating_add(later)
    }

    /// Forgets a checkpoint: its blocks count for the one before.
    pub(super) fn forget(&mut self, id: u64) {
        let Some((at, division)) = self.find(id).filter(|_| id != 0) else {
            return;
        };
        let Some(chunk) = self.chunks.get_mut(at) else {
            return;
        };
        let gone = chunk.divisions.remove(division);
        let before = division.checked_sub(1);
        if let Some(before) = before.and_then(|before| chunk.divisions.get_mut(before)) {
            before.live = before.live.saturating_add(gone.live);
        }
        chunk.settle();
        self.step_back();
    }

    /// Takes out all chunks that are idle.
    pub(super) fn take_idle(&mut self) -> Vec<Chunk> {
        let all = std::mem::take(&mut self.chunks);
        let (idle, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(Chunk::is_idle);
        self.chunks = kept;
        // Those after the current one were idle, so the last that is left is it.
        self.current = self.chunks.len().saturating_sub(1);
        idle
    }

    /// Takes out all chunks.
    pub(super) fn take_all(&mut self) -> Vec<Chunk> {
        self.current = 0;
        std::mem::take(&mut self.chunks)
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(super) fn reserved(&self) -> usize {
        let sizes = self.chunks.iter().map(|chunk| chunk.layout.size());
        sizes.fold(0, usize::saturating_add)
    }

    /// The largest block that could be cut, unless its alignment skips more.
    pub(super) fn largest_free(&self) -> usize {
        let usable = self.chunks.iter().enumerate();
        let usable = usable.filter(|(at, chunk)| *at == self.current || chunk.is_idle());
        let free = usable.map(|(_, chunk)| chunk.layout.size().saturating_sub(chunk.used));
        free.max().unwrap_or(0)
    }
}

fn count(divisions: &[Division]) -> usize {
    let live = divisions.iter().map(|division| division.live);
    live.fold(0, usize::saturating_add)
}
