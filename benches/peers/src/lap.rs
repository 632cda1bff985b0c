//! Fair timing on a machine that does other things too.

use std::time::{Duration, Instant};

/// Does a piece of work and says how many nanoseconds a request took.
pub(crate) type Lap = Box<dyn FnMut() -> f64>;

/// A lap of `work`, which says how many requests it made.
pub(crate) fn lap(mut work: impl FnMut() -> usize + 'static) -> Lap {
    Box::new(move || {
        let begun = Instant::now();
        let requests = work();
        begun.elapsed().as_secs_f64() * 1e9 / requests as f64
    })
}

/// How long all laps of one may take, if that leaves one that counts.
const PATIENCE: Duration = Duration::from_secs(2);

/// The least of `rounds` laps of each, run by turns so that what disturbs them
/// disturbs all alike. A round before these is not counted; what is slow has fewer.
pub(crate) fn best(laps: &mut [Option<Lap>], rounds: usize) -> Vec<Option<f64>> {
    let mut least = vec![f64::INFINITY; laps.len()];
    let mut spent = vec![Duration::ZERO; laps.len()];
    for round in 0..=rounds {
        for ((least, spent), lap) in least.iter_mut().zip(&mut spent).zip(&mut *laps) {
            let Some(lap) = lap else { continue };
            if round > 1 && *spent > PATIENCE {
                continue;
            }
            let begun = Instant::now();
            let ns = lap();
            *spent += begun.elapsed();
            if round > 0 {
                *least = least.min(ns);
            }
        }
    }
    let measured = least.into_iter().zip(laps);
    measured
        .map(|(ns, lap)| lap.is_some().then_some(ns))
        .collect()
}
