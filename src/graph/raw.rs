//! Graphs in and out of serialized forms.
//!
//! Rank 4. Part of `graph`.
//!
//! What is read is checked as if it had been built: a graph that exists is valid.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::graph::{Base, Graph, Node, Op, Role, Value, ValueId};
use crate::plan::DeviceName;
use crate::scalar::ScalarType;
use crate::shape::{ShapeDynamism, TensorSpec};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGraph {
    name: String,
    values: Vec<RawValue>,
    nodes: Vec<RawNode>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawValue {
    name: String,
    #[serde(default, skip_serializing_if = "RawRole::is_computed")]
    role: RawRole,
    dtype: String,
    sizes: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dim_order: Option<Vec<u8>>,
    #[serde(default, skip_serializing_if = "RawDynamism::is_static")]
    dynamism: RawDynamism,
    #[serde(default, skip_serializing_if = "DeviceName::is_host")]
    device: DeviceName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<RawBase>,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawRole {
    #[default]
    Computed,
    Input,
    Constant,
    MutableBuffer,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawDynamism {
    #[default]
    Static,
    DynamicBound,
    DynamicUnbound,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBase {
    value: u32,
    offset: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    op: RawOp,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RawOp {
    Kernel,
    Delegate {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
    },
    Copy,
    View,
    Branch {
        then: Box<Graph>,
        otherwise: Box<Graph>,
    },
    Loop {
        condition: Box<Graph>,
        body: Box<Graph>,
    },
}

impl RawRole {
    fn is_computed(&self) -> bool {
        *self == Self::Computed
    }
}

impl RawDynamism {
    fn is_static(&self) -> bool {
        *self == Self::Static
    }
}

impl Serialize for Graph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawGraph {
            name: self.name.clone(),
            values: self.values.iter().map(RawValue::from).collect(),
            nodes: self.nodes.iter().map(RawNode::from).collect(),
            inputs: numbers(&self.inputs),
            outputs: numbers(&self.outputs),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawGraph::deserialize(deserializer)?;
        let values = raw.values.into_iter().map(Value::try_from);
        let values = values.collect::<Result<_, _>>().map_err(D::Error::custom)?;
        let nodes = raw.nodes.into_iter().map(Node::try_from);
        let nodes = nodes.collect::<Result<_, _>>().map_err(D::Error::custom)?;
        Self::new(raw.name, values, nodes, ids(&raw.inputs), ids(&raw.outputs))
            .map_err(D::Error::custom)
    }
}

impl From<&Value> for RawValue {
    fn from(value: &Value) -> Self {
        let spec = &value.spec;
        let row_major = (0..=u8::MAX).take(spec.sizes().len());
        let is_row_major = spec.dim_order().iter().copied().eq(row_major);
        Self {
            name: value.name.clone(),
            role: match value.role {
                Role::Computed => RawRole::Computed,
                Role::Input => RawRole::Input,
                Role::Constant => RawRole::Constant,
                Role::MutableBuffer => RawRole::MutableBuffer,
            },
            dtype: spec.scalar_type().name().to_owned(),
            sizes: spec.sizes().to_vec(),
            dim_order: (!is_row_major).then(|| spec.dim_order().to_vec()),
            dynamism: match spec.dynamism() {
                ShapeDynamism::Static => RawDynamism::Static,
                ShapeDynamism::DynamicBound => RawDynamism::DynamicBound,
                ShapeDynamism::DynamicUnbound => RawDynamism::DynamicUnbound,
            },
            device: spec.device().into(),
            base: value.base.map(|base| RawBase {
                value: base.value.number(),
                offset: base.offset,
            }),
        }
    }
}

impl TryFrom<RawValue> for Value {
    type Error = String;

    fn try_from(raw: RawValue) -> Result<Self, String> {
        let name = raw.name;
        let fault = |reason: String| format!("value {name:?}: {reason}");
        let mut types = ScalarType::ALL.iter().copied();
        let Some(scalar_type) = types.find(|known| known.name() == raw.dtype) else {
            return Err(fault(format!("unknown dtype {:?}", raw.dtype)));
        };
        let device = raw.device.parse();
        let device = device.map_err(|error| fault(error.to_string()))?;
        let spec = match raw.dim_order {
            Some(order) => TensorSpec::with_dim_order(scalar_type, &raw.sizes, &order, device),
            None => TensorSpec::contiguous(scalar_type, &raw.sizes, device),
        };
        let spec = spec.map_err(|error| fault(error.to_string()))?;
        Ok(Self {
            spec: spec.with_dynamism(match raw.dynamism {
                RawDynamism::Static => ShapeDynamism::Static,
                RawDynamism::DynamicBound => ShapeDynamism::DynamicBound,
                RawDynamism::DynamicUnbound => ShapeDynamism::DynamicUnbound,
            }),
            role: match raw.role {
                RawRole::Computed => Role::Computed,
                RawRole::Input => Role::Input,
                RawRole::Constant => Role::Constant,
                RawRole::MutableBuffer => Role::MutableBuffer,
            },
            base: raw.base.map(|base| Base {
                value: ValueId::new(base.value),
                offset: base.offset,
            }),
            name,
        })
    }
}

impl From<&Node> for RawNode {
    fn from(node: &Node) -> Self {
        Self {
            name: node.name.clone(),
            op: match &node.op {
                Op::Kernel => RawOp::Kernel,
                Op::Delegate { target } => RawOp::Delegate {
                    target: target.map(|device| device.to_string()),
                },
                Op::Copy => RawOp::Copy,
                Op::View => RawOp::View,
                Op::Branch { then, otherwise } => RawOp::Branch {
                    then: then.clone(),
                    otherwise: otherwise.clone(),
                },
                Op::Loop { condition, body } => RawOp::Loop {
                    condition: condition.clone(),
                    body: body.clone(),
                },
            },
            inputs: numbers(&node.inputs),
            outputs: numbers(&node.outputs),
        }
    }
}

impl TryFrom<RawNode> for Node {
    type Error = String;

    fn try_from(raw: RawNode) -> Result<Self, String> {
        let op = match raw.op {
            RawOp::Kernel => Op::Kernel,
            RawOp::Delegate { target: None } => Op::Delegate { target: None },
            RawOp::Delegate { target: Some(text) } => {
                match crate::graph::parse_target_device(&text) {
                    Ok(device) => Op::Delegate {
                        target: Some(device),
                    },
                    Err(error) => return Err(format!("node {:?}: {error}", raw.name)),
                }
            }
            RawOp::Copy => Op::Copy,
            RawOp::View => Op::View,
            RawOp::Branch { then, otherwise } => Op::Branch { then, otherwise },
            RawOp::Loop { condition, body } => Op::Loop { condition, body },
        };
        Ok(Self {
            name: raw.name,
            op,
            inputs: ids(&raw.inputs),
            outputs: ids(&raw.outputs),
        })
    }
}

fn numbers(ids: &[ValueId]) -> Vec<u32> {
    ids.iter().map(|id| id.number()).collect()
}

fn ids(numbers: &[u32]) -> Vec<ValueId> {
    numbers.iter().copied().map(ValueId::new).collect()
}
