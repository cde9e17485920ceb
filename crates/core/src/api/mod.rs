//! The custom resources: types, defaults and what the API server checks; nothing else.

mod gate;

pub use gate::{
    Backoff, Deadlines, GateTaint, NodeGate, NodeGateSpec, NodeSelector, Retry, TaintEffect, VerifiedLabel,
    Worker,
};
