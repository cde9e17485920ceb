//! The subcommands, one file each.

pub mod config;
pub mod controller;
pub mod crds;
pub mod reference;
