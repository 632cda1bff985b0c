//! Which free blocks are kept as they are, and for how long.
//!
//! Rank 4. Part of `adaptor::pool`. Imports nothing.
//!
//! A block that is kept is had again without a search, and is in the way of what needs
//! to be joined. So blocks are kept up to a size, which depends on how much is free, on
//! whether those that were kept were had again, and on whether they were in the way; and
//! all are swept from time to time.

/// How many searches there are at most between two sweeps, for each group of threads, so
/// that blocks which nobody asks for again are joined with their neighbours.
const SEARCHES_A_SWEEP: u64 = 512;

/// A request for so many bytes or more has what is kept swept, for that may be in its way,
/// where it is for more than one part in [`AMPLE`] of what is free.
const LARGE: usize = 8 << 20;
const AMPLE: usize = 8;

/// Memory is ample while so many times as much is held as was seen in use.
const ROOMY: usize = 3;

/// Where memory is ample, a block that is kept is no more than one part in so many of what
/// is free.
const PART: usize = 64;

/// After a sweep that finds keeping of no use, nothing is kept for so many judgements.
const PAUSE: u32 = 31;

/// What decides on the blocks that are kept of one heap.
#[derive(Debug)]
pub(super) struct Keeping {
    policy: Policy,
    /// Searches before the next sweep.
    unswept: u64,
    /// Searches since the last judgement, and how many blocks were had again before it.
    searches: u64,
    hits: u64,
    /// The most bytes that were seen in use.
    peak: usize,
    /// For how many judgements more nothing is kept.
    pause: u32,
}

/// What a pool was told about what it keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Up to which size blocks are kept.
    pub(super) limit: usize,
    /// Whether none are for a while, where that was of no use.
    pub(super) may_pause: bool,
    /// Whether larger ones are, where memory is ample.
    pub(super) may_keep_larger: bool,
}

/// The memory of a heap, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// In segments.
    pub(super) reserved: usize,
    /// In blocks that were not given back: also those that are kept.
    pub(super) used: usize,
    /// What anybody may have.
    pub(super) free: usize,
}

/// What is seen after a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The bytes in use, and those that are asked for now.
    pub(super) used: usize,
    /// How many blocks were had again, ever.
    pub(super) hits: u64,
    /// How many groups threads are in.
    pub(super) groups: u64,
}

impl Keeping {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            unswept: SEARCHES_A_SWEEP,
            searches: 0,
            hits: 0,
            peak: 0,
            pause: 0,
        }
    }

    /// Counts a search for so many bytes. Says whether what is kept is to be swept before
    /// it: once in a while, and where it may be in the way of a large block or makes memory
    /// seem scarce.
    pub(super) fn is_sweep_due(&mut self, size: usize, memory: Memory) -> bool {
        self.searches = self.searches.wrapping_add(1);
        self.unswept = self.unswept.saturating_sub(1);
        let is_large = size >= LARGE;
        let is_short = || size > memory.free / AMPLE;
        let seems_scarce = || {
            let used = memory.used.saturating_add(size);
            self.is_ample(memory) && used > memory.reserved / ROOMY
        };
        self.unswept == 0 || is_large && (is_short() || seems_scarce())
    }

    /// What is kept was swept.
    pub(super) fn swept(&mut self, seen: Seen) {
        self.unswept = SEARCHES_A_SWEEP.saturating_mul(seen.groups.max(1));
        self.peak = self.peak.max(seen.used);
        if self.searches >= SEARCHES_A_SWEEP {
            self.judge(seen.hits);
        }
    }

    /// Decides whether it is of use to keep blocks: whether they were had again at least
    /// as often as others were searched for.
    fn judge(&mut self, hits: u64) {
        let had = hits.wrapping_sub(self.hits);
        let is_of_use = !self.policy.may_pause || had >= self.searches;
        (self.searches, self.hits) = (0, hits);
        self.pause = match self.pause.checked_sub(1) {
            Some(left) => left,
            None if is_of_use => 0,
            None => PAUSE,
        };
    }

    /// All that is not in use goes back to the layer below: what was in use before is
    /// of the past.
    pub(super) fn trimmed(&mut self, used: usize) {
        self.peak = used;
    }

    /// Up to which size blocks are kept now.
    pub(super) fn limit(&self, memory: Memory) -> usize {
        let larger = if self.is_ample(memory) {
            memory.free / PART
        } else {
            0
        };
        match self.pause {
            0 => self.policy.limit.max(larger),
            _ => 0,
        }
    }

    /// Whether much more is held than was seen in use.
    fn is_ample(&self, memory: Memory) -> bool {
        self.policy.may_keep_larger && memory.reserved / ROOMY >= self.peak
    }
}
