//! No mutation of a real program makes the reader panic.

use device_memory::pte::Program;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use crate::support::{bytes, programs, visit};

/// One change of a file; positions are fractions of the file.
#[derive(Clone, Debug)]
enum Change {
    /// Flips bits of a byte.
    Flip(prop::sample::Index, u8),
    /// Replaces an aligned word.
    Word(prop::sample::Index, u32),
    /// Copies an aligned word to another place.
    Copy(prop::sample::Index, prop::sample::Index),
    /// Adds a little to an aligned word.
    Nudge(prop::sample::Index, i8),
    /// Cuts the end off.
    Cut(prop::sample::Index),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let words = bytes.len() / 4;
        let at = |index: &prop::sample::Index| index.index(words) * 4;
        match self {
            Self::Flip(index, bits) if !bytes.is_empty() => {
                let position = index.index(bytes.len());
                bytes[position] ^= bits;
            }
            Self::Cut(index) if !bytes.is_empty() => bytes.truncate(index.index(bytes.len())),
            _ if words == 0 => {}
            Self::Word(index, word) => set(bytes, at(index), *word),
            Self::Copy(from, to) => {
                let word = get(bytes, at(from));
                set(bytes, at(to), word);
            }
            Self::Nudge(index, by) => {
                let word = get(bytes, at(index));
                set(bytes, at(index), word.wrapping_add_signed(i32::from(*by)));
            }
            Self::Flip(..) | Self::Cut(_) => {}
        }
    }
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    let word = prop_oneof![
        Just(0),
        Just(1),
        Just(0x7fff_ffff),
        Just(0x8000_0000),
        Just(0xffff_ffff),
        0_u32..64,
        any::<u32>(),
    ];
    prop_oneof![
        4 => (index(), 1_u8..).prop_map(|(at, bits)| Change::Flip(at, bits)),
        6 => (index(), word).prop_map(|(at, word)| Change::Word(at, word)),
        4 => (index(), index()).prop_map(|(from, to)| Change::Copy(from, to)),
        4 => (index(), -16_i8..=16).prop_map(|(at, by)| Change::Nudge(at, by)),
        1 => index().prop_map(Change::Cut),
    ]
}

/// The files to mutate: small ones, where a change hits something.
fn files() -> Vec<Vec<u8>> {
    let files = programs()
        .into_iter()
        .map(|name| bytes(&format!("{name}.pte")));
    files.filter(|file| file.len() < 16_000).collect()
}

fn try_read(bytes: &[u8]) {
    if let Ok(program) = Program::parse(bytes) {
        visit(&program);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutations_are_refused_or_read_in_full(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..6),
    ) {
        let files = files();
        let mut bytes = file.get(&files).clone();

        changes.iter().for_each(|change| change.apply(&mut bytes));

        try_read(&bytes);
    }

    #[test]
    fn random_bytes_behind_the_identifier_are_refused_or_read_in_full(
        root in 0_u32..128,
        tail in prop::collection::vec(any::<u8>(), 0..256),
    ) {
        let mut bytes = root.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"ET12");
        bytes.extend_from_slice(&tail);

        try_read(&bytes);
    }
}

#[test]
fn every_extreme_in_every_word_is_refused_or_read_in_full() {
    for name in ["add_cpu", "add_cuda0"] {
        let original = bytes(&format!("{name}.pte"));
        for at in (0..original.len() / 4).map(|word| word * 4) {
            for word in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
                let mut bytes = original.clone();
                set(&mut bytes, at, word);
                try_read(&bytes);
            }
        }
    }
}

#[test]
fn every_cut_is_refused_or_read_in_full() {
    for name in ["add_cpu", "add_cuda0", "mutable_buffer_cpu"] {
        let original = bytes(&format!("{name}.pte"));
        for len in 0..original.len() {
            try_read(&original[..len]);
        }
    }
}
