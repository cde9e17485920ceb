//! `make images`: builds the static binaries that go into images.

use std::process::ExitCode;

use nodekeeper_e2e::product::Product;

fn run() -> anyhow::Result<()> {
    let Product { controller, worker } = Product::build()?;
    for binary in [controller, worker] {
        println!("{:>9} bytes  {}", std::fs::metadata(&binary)?.len(), binary.display());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
