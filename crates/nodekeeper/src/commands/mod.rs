//! One file a subcommand. They print; what they call decides.

pub mod demo;
