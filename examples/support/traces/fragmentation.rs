//! An adversary that leaves holes and then asks for a little more than they hold.
//!
//! Twelve rounds, none with more than 1 GiB live. A round fills what is left with
//! blocks of about one size, half as large again and 1 KiB more than that of the
//! round before, and frees every second of them; the other half stays for two
//! more rounds, so that its holes have neighbours that live. Sizes are off by up
//! to 255 bytes, so that no two rounds agree.
//!
//! Then comes a churn of 40,000 calls: blocks whose sizes spread evenly over the
//! powers of two from 512 bytes to 32 MiB are allocated and freed at random, one
//! in 16 of them kept to the end.

use device_memory::Tag;

use super::{Random, Trace};

const ROUNDS: usize = 12;
const LIMIT: usize = 1 << 30;
const CHURN: usize = 40_000;

/// Makes the trace: some 165,000 calls.
pub(crate) fn generate(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let mut trace = Trace::default();
    comb(&mut trace, &mut random);
    churn(&mut trace, &mut random);
    trace
}

fn comb(trace: &mut Trace, random: &mut Random) {
    let mut kept: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
    let mut size = 32 * 1024;
    for _ in 0..ROUNDS {
        let mut filled = Vec::new();
        while trace.live_bytes() + size + 256 <= LIMIT {
            let wanted = size + random.between(0, 255);
            filled.push(trace.allocate(wanted, Tag::NONE));
        }
        let odd = |at: &usize| at % 2 == 1;
        let (holes, teeth): (Vec<_>, Vec<_>) = (0..filled.len()).partition(odd);
        trace.free_all(holes.into_iter().map(|at| filled[at]));
        let teeth = teeth.into_iter().map(|at| filled[at]).collect();
        let [oldest, older] = kept;
        trace.free_all(oldest);
        kept = [older, teeth];
        size = size * 3 / 2 + 1024;
    }
    trace.free_all(kept.into_iter().flatten());
}

fn churn(trace: &mut Trace, random: &mut Random) {
    let mut live = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..CHURN {
        let power = random.between(9, 24);
        let size = (1 << power) + random.between(0, (1 << power) - 1);
        let room = trace.live_bytes() + size <= LIMIT;
        if room && (live.is_empty() || !random.once_in(3)) {
            let block = trace.allocate(size, Tag::NONE);
            if random.once_in(16) && kept.len() < 64 {
                kept.push(block);
            } else {
                live.push(block);
            }
        } else if !live.is_empty() {
            let block = random.take(&mut live);
            trace.free(block);
        }
    }
    trace.free_all(live);
    trace.free_all(kept);
}
