//! The text of a header.
//!
//! Rank 9. Part of `weights`.
//!
//! A map of JSON may hold a key twice. What would collect it in a map takes the
//! last and says nothing, so the entries are collected in a list.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// The key that stands for no tensor.
const METADATA: &str = "__metadata__";

/// What a header says, unchecked, in the order of the text.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries::default();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name != METADATA {
                entries.tensors.push((name, map.next_value()?));
            } else if metadata.is_none() {
                metadata = Some(map.next_value::<Option<BTreeMap<String, String>>>()?);
            } else {
                return Err(A::Error::duplicate_field(METADATA));
            }
        }
        entries.metadata = metadata.flatten().unwrap_or_default();
        Ok(entries)
    }
}
