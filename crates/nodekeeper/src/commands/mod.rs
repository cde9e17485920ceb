//! The subcommands, one file each.

pub mod config;
pub mod controller;
pub mod crds;
#[cfg(feature = "sim")]
pub mod demo;
pub mod reference;
