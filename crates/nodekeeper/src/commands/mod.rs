//! The subcommands, one file each.

pub mod agent;
pub mod check;
pub mod config;
pub mod controller;
pub mod crds;
pub mod reference;
