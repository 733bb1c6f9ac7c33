//! Writes the CustomResourceDefinitions into a folder:
//! `cargo run -p libcalico --features schema --bin crds -- deploy/crds`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: crds FOLDER");
        return ExitCode::FAILURE;
    };
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "cannot write the definitions into {}: {error}",
                folder.display()
            );
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &std::path::Path) -> io::Result<()> {
    for (path, text) in libcalico::crd::generated_files().map_err(io::Error::other)? {
        let path = folder.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    Ok(())
}
