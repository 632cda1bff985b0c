//! A program that is planned again is the same program in less memory.

use device_memory::plan::PlanOptions;
use device_memory::pte::{ArenaChange, Program, Replanned, replan};
use device_memory::{Error, ErrorKind};

use crate::support::{Patch, bytes, json, programs, slot};

fn replanned(bytes: &[u8]) -> Result<Replanned, Error> {
    replan(bytes, &PlanOptions::default())
}

#[test]
fn scratch() {
    for name in programs() {
        match replanned(&bytes(&format!("{name}.pte"))) {
            Ok(new) => {
                let plan = json(&format!("{name}.plan.json"));
                for arena in new.arenas {
                    println!("{name} {arena:?}");
                }
                for arena in plan["arenas"].as_array().into_iter().flatten() {
                    let tensors = arena["tensors"].as_array().unwrap();
                    let at = |t: u64| -> u64 {
                        tensors
                            .iter()
                            .filter(|v| {
                                v["start"].as_u64().unwrap() <= t && t <= v["end"].as_u64().unwrap()
                            })
                            .map(|v| v["aligned"].as_u64().unwrap())
                            .sum()
                    };
                    let lb = tensors
                        .iter()
                        .map(|v| at(v["start"].as_u64().unwrap()))
                        .max()
                        .unwrap_or(0);
                    println!(
                        "    plan lb {lb} sizes {} dev {} align {}",
                        arena["buffer_sizes"], arena["device"], arena["alignment"]
                    );
                }
            }
            Err(error) => println!("{name} ERR {error}"),
        }
    }
}
