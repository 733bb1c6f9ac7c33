//! Tests of the findings about the directories of an installation and about the programs that a
//! configuration names.

use super::*;
use installation::directory_access::UnwritableDirectory;

#[test]
fn missing_or_broken_programs_are_reported() {
    let set = |at: usize, state: ProgramState| {
        move |snapshot: &mut NodeSnapshot| snapshot.programs[at].state = state
    };
    only(
        "FAIL program portmap: the program is missing",
        set(1, ProgramState::Missing),
    );
    only(
        "FAIL program loopback: the program is missing: containerd",
        set(3, ProgramState::Missing),
    );
    only(
        "FAIL program calico: the name contains '/'",
        set(0, ProgramState::InvalidName),
    );
    only(
        "FAIL program calico: /x is not executable",
        set(0, ProgramState::NotExecutable("/x".into())),
    );
    only(
        "FAIL program calico: /x: why",
        set(0, ProgramState::Broken("/x".into(), "why".into())),
    );
    only(
        "warn program portmap: /x is dynamically linked or a script, and cannot be run in this \
         container",
        set(1, ProgramState::OnlyOnNode("/x".into())),
    );
    let old = ProgramState::Supports("/x".into(), vec!["0.3.1".into()]);
    only(
        "FAIL program portmap: /x does not support cniVersion 1.0.0, but 0.3.1",
        set(1, old.clone()),
    );
    assert!(
        wrong(set(3, old)).is_empty(),
        "containerd asks loopback for 0.3.1"
    );
}

#[test]
fn program_that_differs_from_the_installed_file_is_reported() {
    let origin = |at: usize, origin: ProgramOrigin| {
        move |snapshot: &mut NodeSnapshot| snapshot.programs[at].origin = origin
    };
    only(
        "warn program calico: /opt/cni/bin/calico v1, up to 1.0.0, is not the installed file",
        origin(0, ProgramOrigin::Other),
    );
    only(
        "warn program portmap: /opt/cni/bin/portmap, up to 1.0.0, is not the installed file",
        origin(1, ProgramOrigin::Other),
    );
    only(
        "warn program calico-ipam: /opt/cni/bin/calico-ipam v1, up to 1.0.0, is from an earlier \
         installation",
        origin(2, ProgramOrigin::Former),
    );
    assert!(
        wrong(origin(1, ProgramOrigin::Unknown)).is_empty(),
        "others may have brought it"
    );
    only(
        "warn program calico: /opt/cni/bin/calico v0, up to 1.0.0, does not have the version of \
         this doctor, v1",
        |snapshot| {
            snapshot.programs[0].version = Some("v0".into());
        },
    );
    only("warn installer's notes: damaged", |snapshot| {
        snapshot.records = Err("damaged".into())
    });
}

#[test]
fn directory_of_another_user_is_a_failure_only_without_the_capability() {
    let kubes = |is_denied| UnwritableDirectory {
        path: "/etc/cni/net.d".into(),
        owner: 997,
        group: 0,
        mode: 0o755,
        is_denied,
    };
    let words =
        "directories: /etc/cni/net.d belongs to user 997 and group 0 with mode 0755, so root needs";
    only(&format!("FAIL {words}"), |snapshot| {
        snapshot.unwritable = vec![kubes(true)]
    });
    only(&format!("warn {words}"), |snapshot| {
        snapshot.unwritable = vec![kubes(false)]
    });
}
