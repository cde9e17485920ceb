//! One file a subcommand. None of them decides anything.

pub mod config;
pub mod controller;
pub mod crds;
#[cfg(feature = "sim")]
pub mod demo;
pub mod reference;
