//! The bytes of one fake block.
//!
//! Rank 8. Part of `testing::fake_device`. Imports nothing from this crate.
//!
//! Only what is written takes memory: a block is a background, which is a list
//! of runs of one byte, with pages of bytes on top. Blocks and fills of
//! terabytes cost nothing.

use std::collections::BTreeMap;

/// What fresh memory reads as.
pub(super) const POISON: u8 = 0xCD;

const PAGE: usize = 4096;

/// The bytes of a block, most of them implied.
pub(super) struct Contents {
    size: usize,
    /// Each run of one byte by its start; it ends where the next one starts.
    background: BTreeMap<usize, u8>,
    /// Written pages by their start, all of `PAGE` bytes but the last.
    pages: BTreeMap<usize, Box<[u8]>>,
}

/// A part of a block's bytes, at an offset from the start of a range.
pub(super) enum Piece {
    Run { offset: usize, len: usize, byte: u8 },
    Bytes { offset: usize, bytes: Box<[u8]> },
}

impl Contents {
    /// `size` bytes of fresh memory.
    pub(super) fn fresh(size: usize) -> Self {
        Self {
            size,
            background: BTreeMap::new(),
            pages: BTreeMap::new(),
        }
    }

    /// Sets `len` bytes from `offset` to `byte`.
    pub(super) fn fill(&mut self, offset: usize, len: usize, byte: u8) {
        let end = self.end(offset, len);
        if offset >= end {
            return;
        }
        let after = self.background_at(end);
        let covered: Vec<usize> = self.background.range(offset..end).map(key).collect();
        for start in covered {
            self.background.remove(&start);
        }
        self.background.insert(offset, byte);
        if end < self.size {
            self.background.insert(end, after);
        }

        let touched: Vec<usize> = self.pages.range(page_start(offset)..end).map(key).collect();
        for start in touched {
            if start >= offset && self.end(start, PAGE) <= end {
                self.pages.remove(&start);
            } else if let Some(page) = self.pages.get_mut(&start) {
                let from = offset.saturating_sub(start);
                let to = end.saturating_sub(start).min(page.len());
                if let Some(part) = page.get_mut(from..to) {
                    part.fill(byte);
                }
            }
        }
    }

    /// Sets the bytes from `offset`.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let mut offset = offset;
        let mut bytes = bytes;
        while !bytes.is_empty() && offset < self.size {
            let start = page_start(offset);
            let page = self.page(start);
            let from = offset.saturating_sub(start);
            let len = page.len().saturating_sub(from).min(bytes.len());
            let (now, later) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
            if let Some(part) = page.get_mut(from..from.saturating_add(len)) {
                part.copy_from_slice(now);
            }
            bytes = later;
            offset = offset.saturating_add(len);
        }
    }

    /// Reads the bytes from `offset`.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let len = out.len();
        for (from, to, byte) in self.runs(offset, len) {
            if let Some(part) = out.get_mut(within(from, to, offset)) {
                part.fill(byte);
            }
        }
        for (from, bytes) in self.written(offset, len) {
            let to = from.saturating_add(bytes.len());
            if let Some(part) = out.get_mut(within(from, to, offset)) {
                part.copy_from_slice(bytes);
            }
        }
    }

    /// The `len` bytes from `offset`, to be put elsewhere with
    /// [`put`](Self::put) in this order.
    pub(super) fn pieces(&self, offset: usize, len: usize) -> Vec<Piece> {
        let runs = self.runs(offset, len).map(|(from, to, byte)| Piece::Run {
            offset: from.saturating_sub(offset),
            len: to.saturating_sub(from),
            byte,
        });
        let written = self.written(offset, len).map(|(from, bytes)| Piece::Bytes {
            offset: from.saturating_sub(offset),
            bytes: Box::from(bytes),
        });
        runs.chain(written).collect()
    }

    /// Writes a piece of other contents, which was at the start of its range, to
    /// `start`.
    pub(super) fn put(&mut self, start: usize, piece: &Piece) {
        match piece {
            Piece::Run { offset, len, byte } => {
                self.fill(start.saturating_add(*offset), *len, *byte);
            }
            Piece::Bytes { offset, bytes } => self.write(start.saturating_add(*offset), bytes),
        }
    }

    /// The background of a range: start, end and byte of each run.
    fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, usize, u8)> {
        let end = self.end(offset, len);
        let inner = offset.saturating_add(1)..end.max(offset.saturating_add(1));
        let mut starts = self
            .background
            .range(inner)
            .map(|(start, byte)| (*start, *byte));
        let mut next = (offset < end).then(|| (offset, self.background_at(offset)));
        std::iter::from_fn(move || {
            let (from, byte) = next?;
            next = starts.next();
            Some((from, next.map_or(end, |(start, _)| start), byte))
        })
    }

    /// The written parts of a range, each with where it starts in the block.
    fn written(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let end = self.end(offset, len).max(offset);
        self.pages
            .range(page_start(offset)..end.max(page_start(offset)))
            .filter_map(move |(&start, page)| {
                let from = offset.max(start);
                let to = end.min(start.saturating_add(page.len()));
                let part = page.get(within(from, to, start))?;
                Some((from, part))
            })
    }

    /// The page from `start`, made from the background if it is not there yet.
    fn page(&mut self, start: usize) -> &mut Box<[u8]> {
        if !self.pages.contains_key(&start) {
            let len = self.end(start, PAGE).saturating_sub(start);
            let mut page = vec![POISON; len].into_boxed_slice();
            self.read(start, &mut page);
            self.pages.insert(start, page);
        }
        self.pages.entry(start).or_default()
    }

    fn background_at(&self, offset: usize) -> u8 {
        let run = self.background.range(..=offset).next_back();
        run.map_or(POISON, |(_, byte)| *byte)
    }

    fn end(&self, offset: usize, len: usize) -> usize {
        offset.saturating_add(len).min(self.size)
    }
}

fn key<V>((key, _): (&usize, V)) -> usize {
    *key
}

fn page_start(offset: usize) -> usize {
    offset & !PAGE.wrapping_sub(1)
}

/// The range `from..to` counted from `origin`.
fn within(from: usize, to: usize, origin: usize) -> std::ops::Range<usize> {
    from.saturating_sub(origin)..to.saturating_sub(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a small generator, for a sequence that looks random.
    fn next(state: &mut usize) -> usize {
        *state = state.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
        *state >> 11
    }

    #[test]
    fn any_sequence_of_writes_fills_and_copies_equals_that_on_plain_bytes() {
        let size = 3 * PAGE + 17;
        let mut state = 1;
        for _ in 0..20 {
            let mut contents = Contents::fresh(size);
            let mut model = vec![POISON; size];
            for step in 0..60 {
                let offset = next(&mut state) % size;
                let len = next(&mut state) % (size - offset) + 1;
                let byte = (next(&mut state) % 256) as u8;
                match next(&mut state) % 3 {
                    0 => {
                        contents.fill(offset, len, byte);
                        model[offset..offset + len].fill(byte);
                    }
                    1 => {
                        let len = len.min(700);
                        let bytes: Vec<u8> = (0..len).map(|i| byte ^ (i % 251) as u8).collect();
                        contents.write(offset, &bytes);
                        model[offset..offset + len].copy_from_slice(&bytes);
                    }
                    _ => {
                        let to = next(&mut state) % (size - len + 1);
                        for piece in contents.pieces(offset, len) {
                            contents.put(to, &piece);
                        }
                        model.copy_within(offset..offset + len, to);
                    }
                }

                let mut read = vec![0; size];
                contents.read(0, &mut read);
                assert!(read == model, "step {step}");
                let mut part = vec![0; len];
                contents.read(offset, &mut part);
                assert!(part == model[offset..offset + len], "step {step}");
            }
        }
    }

    #[test]
    fn fills_of_any_size_make_no_pages() {
        let mut contents = Contents::fresh(1 << 30);

        contents.write(5, b"abc");
        contents.fill(0, 1 << 29, 7);
        contents.fill(100, (1 << 30) - 100, 8);

        assert!(contents.pages.is_empty());
        assert_eq!(contents.background.len(), 2);
    }
}
