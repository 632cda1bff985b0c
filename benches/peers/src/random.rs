//! Numbers that look random: xorshift, by Marsaglia.

pub(crate) struct Random(u64);

impl Random {
    /// Of a seed that is not zero.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `limit`.
    #[inline]
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}
