//! The files of this process's code, and their addresses in memory.

use std::fmt::Write;

use findshlibs::{IterationControl, SharedLibrary, TargetSharedLibrary};
use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, Process};

use super::format::Code;

/// Returns the mappings with code, that of the program itself first.
pub(super) fn mapped() -> Result<Vec<Code>, ProcError> {
    let process = Process::myself()?;
    let program = process.exe()?;
    let mut code = Vec::new();
    for map in process.maps()? {
        if let (MMapPath::Path(path), true) = (map.pathname, map.perms.contains(MMPermissions::EXECUTE)) {
            let own = path == program;
            let build_id = if own { build_id() } else { String::new() };
            let one = Code { memory: map.address, offset: map.offset, file: path.display().to_string(), build_id };
            code.insert(if own { 0 } else { code.len() }, one);
        }
    }
    Ok(code)
}

/// Returns the build ID of the program in hexadecimal, or an empty string if the linker wrote none.
fn build_id() -> String {
    let mut id = String::new();
    TargetSharedLibrary::each(|library| {
        for byte in library.id().iter().flat_map(|id| id.as_bytes().to_vec()) {
            let _ = write!(id, "{byte:02x}");
        }
        // The program is the first library of the list.
        IterationControl::Break
    });
    id
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_program_comes_first_with_its_build_id() {
        let code = mapped().expect("code");
        let here = the_program_comes_first_with_its_build_id as fn() as usize as u64;
        let program = &code[0];
        assert!((program.memory.0..program.memory.1).contains(&here), "{code:?}");
        let file = std::env::current_exe().expect("a program").display().to_string();
        assert_eq!(program.file, file);
        let notes = Command::new("readelf").args(["--wide", "--notes", &file]).output().expect("readelf");
        let notes = String::from_utf8(notes.stdout).expect("text");
        let told = notes.lines().find_map(|line| line.split("Build ID: ").nth(1)).expect("a build id").trim();
        assert_eq!(program.build_id, told);
    }
}
