//! Python's pickle format, as much of it as a memory snapshot needs.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports nothing.
//!
//! Protocol 2, with the few instructions that PyTorch's viewer reads in
//! JavaScript. Its stack holds a whole batch of a list, so batches are short.

use std::collections::HashMap;

const PROTO: u8 = 0x80;
const VERSION: u8 = 2;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SET_ITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
/// A signed number of four bytes.
const BIN_INT: u8 = b'J';
/// A signed number of as many bytes as the next one says.
const LONG_1: u8 = 0x8a;
/// Text in UTF-8, after its length in four bytes.
const BIN_UNICODE: u8 = b'X';
/// Remembers the value just written under a number of one byte.
const BIN_PUT: u8 = b'q';
/// The value that was remembered under a number of one byte.
const BIN_GET: u8 = b'h';

/// How many elements are appended to a list at once.
const BATCH: usize = 1000;

/// A value being written. Texts and lists that come often are written once.
#[derive(Debug)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
    /// The numbers of remembered values: texts by themselves, others by a key.
    memo: HashMap<(bool, String), u8>,
    /// Inside of a remembered value nothing is looked up: some readers can not do
    /// both.
    inside: bool,
}

impl Pickle {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![PROTO, VERSION],
            memo: HashMap::new(),
            inside: false,
        }
    }

    /// The bytes of the file, after one value.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(STOP);
        self.bytes
    }

    pub(super) fn int(&mut self, value: u64) {
        if let Ok(value) = i32::try_from(value) {
            self.bytes.push(BIN_INT);
            self.bytes.extend(value.to_le_bytes());
            return;
        }
        // One byte more than the number has, so that its sign is clear.
        let mut digits = value.to_le_bytes().to_vec();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        if digits.last().is_some_and(|&high| high >= 0x80) {
            digits.push(0);
        }
        self.bytes.push(LONG_1);
        self.bytes.push(u8::try_from(digits.len()).unwrap_or(0));
        self.bytes.extend(digits);
    }

    /// What `write` writes, which is the same each time for the same key. Who reads
    /// the file gets one value, many times.
    pub(super) fn shared(&mut self, key: String, write: impl FnOnce(&mut Self)) {
        self.once((false, key), |pickle| {
            pickle.inside = true;
            write(pickle);
            pickle.inside = false;
        });
    }

    /// Text. What no file of this format can hold is written as no text.
    pub(super) fn text(&mut self, text: &str) {
        if self.inside {
            self.new_text(text);
        } else {
            self.once((true, text.to_owned()), |pickle| pickle.new_text(text));
        }
    }

    fn once(&mut self, key: (bool, String), write: impl FnOnce(&mut Self)) {
        if let Some(&number) = self.memo.get(&key) {
            self.bytes.extend([BIN_GET, number]);
            return;
        }
        write(self);
        // There are 256 numbers; what has none is written again.
        if let Ok(number) = u8::try_from(self.memo.len()) {
            self.memo.insert(key, number);
            self.bytes.extend([BIN_PUT, number]);
        }
    }

    fn new_text(&mut self, text: &str) {
        let (len, text) = match u32::try_from(text.len()) {
            Ok(len) => (len, text),
            Err(_) => (0, ""),
        };
        self.bytes.push(BIN_UNICODE);
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    /// A dictionary of what `write` writes: keys and values by turns, few of them.
    pub(super) fn dict(&mut self, write: impl FnOnce(&mut Self)) {
        self.bytes.extend([EMPTY_DICT, MARK]);
        write(self);
        self.bytes.push(SET_ITEMS);
    }

    /// A list of what `write` writes, one value for each item.
    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.bytes.push(EMPTY_LIST);
        for batch in items.chunks(BATCH) {
            self.bytes.push(MARK);
            for item in batch {
                write(self, item);
            }
            self.bytes.push(APPENDS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: u64) -> Vec<u8> {
        let mut pickle = Pickle::new();
        pickle.int(value);
        pickle.finish()
    }

    #[test]
    fn numbers_take_the_shortest_form_that_keeps_their_sign() {
        assert_eq!(written(7), b"\x80\x02J\x07\x00\x00\x00.");
        assert_eq!(written(0x7fff_ffff), b"\x80\x02J\xff\xff\xff\x7f.");
        assert_eq!(
            written(0x8000_0000),
            b"\x80\x02\x8a\x05\x00\x00\x00\x80\x00."
        );
        assert_eq!(
            written(u64::MAX),
            b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."
        );
    }

    #[test]
    fn what_is_written_again_is_a_number_until_there_are_no_more() {
        let mut pickle = Pickle::new();

        for n in 0..300 {
            pickle.text(&n.to_string());
        }
        let first = pickle.bytes.len();
        pickle.text("7");
        let known = pickle.bytes.len();
        pickle.text("299");

        assert_eq!(pickle.bytes[first..known], [BIN_GET, 7]);
        assert_eq!(pickle.bytes[known..], *b"X\x03\x00\x00\x00299");
    }

    #[test]
    fn long_lists_are_appended_in_batches() {
        let mut pickle = Pickle::new();

        pickle.list(&[0; 2001], |pickle, _| pickle.text(""));

        let appends = pickle.bytes.iter().filter(|&&byte| byte == APPENDS).count();
        assert_eq!(appends, 3);
    }
}
