//! Decoding, and the numbers that it is to give.

use std::path::Path;

use device_memory::Result;
use device_memory::graph::CopyCounts;
use serde_json::Value;

use crate::sequence::{Engine, Sequence};

/// How far a logit may be from the reference's.
pub(crate) const TOLERANCE: f32 = 2e-4;

/// What the reference gave: see `tests/data/moe/README.md`.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// The tokens of the prompt.
    pub(crate) prompt: Vec<i64>,
    /// The logits after each.
    pub(crate) prompt_logits: Vec<Vec<f32>>,
    /// The tokens that follow, each the likeliest.
    pub(crate) greedy: Vec<i64>,
    /// The logits that each of them was chosen by.
    pub(crate) step_logits: Vec<Vec<f32>>,
}

impl Reference {
    /// Reads `NAME.expect.json`.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |reason: String| format!("{}: {reason}", path.display());
        let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let json: Value =
            serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        let list = |name: &str| {
            let list = json[name].as_array();
            list.ok_or_else(|| failed(format!("no list {name}")))
        };
        let tokens = |name: &str| {
            let tokens = list(name)?.iter().map(Value::as_i64).collect();
            Option::ok_or(tokens, failed(format!("no tokens in {name}")))
        };
        let logits = |name: &str| {
            let row = |row: &Value| {
                let row = row.as_array()?.iter();
                row.map(|x| Some(x.as_f64()? as f32)).collect()
            };
            let rows = list(name)?.iter().map(row).collect();
            Option::ok_or(rows, failed(format!("no logits in {name}")))
        };
        let found = Self {
            prompt: tokens("prompt")?,
            prompt_logits: logits("prompt_logits")?,
            greedy: tokens("greedy")?,
            step_logits: logits("step_logits")?,
        };
        found.check_lengths().map_err(failed)?;
        Ok(found)
    }

    /// Checks that there are tokens, and logits for each, so that there is something to
    /// compare and nothing is left out.
    fn check_lengths(&self) -> Result<(), String> {
        for (what, tokens, logits) in [
            ("prompt", &self.prompt, &self.prompt_logits),
            ("greedy", &self.greedy, &self.step_logits),
        ] {
            let (tokens, logits) = (tokens.len(), logits.len());
            if tokens == 0 || tokens != logits {
                return Err(format!("{what}: {tokens} tokens, logits of {logits}"));
            }
        }
        Ok(())
    }

    /// Decodes, and compares all logits and tokens. Says how far a logit was from the
    /// reference's at most; none was further than [`TOLERANCE`].
    pub(crate) fn check(&self, engine: &Engine<'_>) -> Result<f32, String> {
        let mut sequence = Sequence::new(engine).map_err(|error| error.to_string())?;
        let (mut logits, mut next, mut largest) = (Vec::new(), 0, 0.0);
        for (number, (&token, expected)) in self.prompt.iter().zip(&self.prompt_logits).enumerate()
        {
            let step = sequence
                .set_token(engine, token)
                .and_then(|()| sequence.step(engine, Some(&mut logits)));
            next = step.map_err(|error| error.to_string())?.next;
            let apart = difference(&logits, expected);
            largest = apart.max(largest);
            near(apart, "prompt position", number)?;
        }
        for (number, (&token, expected)) in self.greedy.iter().zip(&self.step_logits).enumerate() {
            let apart = difference(&logits, expected);
            largest = apart.max(largest);
            near(apart, "step", number)?;
            if next != token {
                return Err(format!("token of step {number}: {next}, expected {token}"));
            }
            let step = sequence.step(engine, Some(&mut logits));
            next = step.map_err(|error| error.to_string())?.next;
        }
        Ok(largest)
    }
}

/// Nothing, if a difference is small enough.
fn near(apart: f32, what: &str, number: usize) -> Result<(), String> {
    if apart <= TOLERANCE {
        return Ok(());
    }
    Err(format!("logits of {what} {number}: {apart} apart"))
}

/// The largest difference of two rows; not a number if they are not of one length, or
/// have what is none.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f32 {
    if found.len() != expected.len() {
        return f32::NAN;
    }
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, |largest, apart| {
        if largest.is_nan() || apart <= largest {
            largest
        } else {
            apart
        }
    })
}

/// Gives a sequence its prompt. Returns the token that follows.
pub(crate) fn prompt(engine: &Engine<'_>, sequence: &mut Sequence, tokens: &[i64]) -> Result<i64> {
    let mut next = 0;
    for &token in tokens {
        sequence.set_token(engine, token)?;
        next = sequence.step(engine, None)?.next;
    }
    Ok(next)
}

/// So many steps, each from the token that the one before has left on the device.
/// Returns their tokens, and the copies of each step.
pub(crate) fn decode(
    engine: &Engine<'_>,
    sequence: &mut Sequence,
    steps: usize,
) -> Result<(Vec<i64>, Vec<CopyCounts>)> {
    let (mut tokens, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let step = sequence.step(engine, None)?;
        tokens.push(step.next);
        copies.push(step.copies);
    }
    Ok((tokens, copies))
}
