//! Opening and entering network namespaces.

use std::path::Path;
use std::{fs, thread};

use dataplane::{DataplaneError, NetnsError, NetnsFd, setup, verify};
use integration_tests::namespaces::isolated;

use super::{link_names, open, plan};

#[test]
fn open_distinguishes_missing_paths_from_paths_without_a_namespace() {
    isolated(|host| {
        let absent = host.dir("files").join("absent");
        assert!(
            matches!(NetnsFd::open(&absent), Err(NetnsError::NotFound { path }) if path == absent)
        );

        let file = host.dir("files").join("file");
        fs::write(&file, "").unwrap();
        let error = NetnsFd::open(&file).unwrap_err();
        assert!(
            matches!(error, NetnsError::NotANamespace { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!("{} is not a network namespace", file.display())
        );

        let error = NetnsFd::open(Path::new("/proc/self/status")).unwrap_err();
        assert!(
            matches!(error, NetnsError::NotANamespace { .. }),
            "{error:?}"
        );

        // A namespace of another type is detected only when it is entered.
        let mounts = NetnsFd::open(Path::new("/proc/self/ns/mnt")).unwrap();
        let error = mounts.run_in(|| Ok::<_, NetnsError>(())).unwrap_err();
        assert!(
            matches!(error, NetnsError::NotANamespace { .. }),
            "{error:?}"
        );
        let plan = plan("cali1", &["10.65.0.2"]);
        for error in [
            setup(&plan, &mounts).unwrap_err(),
            verify(&plan, &mounts).unwrap_err(),
        ] {
            assert!(
                matches!(
                    error,
                    DataplaneError::Netns(NetnsError::NotANamespace { .. })
                ),
                "{error:?}"
            );
        }
        assert_eq!(link_names(), ["lo"]);
    });
}

#[test]
fn open_of_the_plugins_own_namespace_is_refused() {
    isolated(|_| {
        let error = NetnsFd::open(Path::new("/proc/thread-self/ns/net")).unwrap_err();
        assert!(
            matches!(error, NetnsError::SameNamespace { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn run_in_a_namespace_leaves_the_caller_in_its_own() {
    isolated(|host| {
        let pod = open(host, "pod1");
        integration_tests::command::ip("link add outside type veth peer name outside1").unwrap();
        let inside = pod.run_in(|| Ok::<_, NetnsError>(link_names())).unwrap();
        assert_eq!(inside, ["lo"]);
        let refused: Result<(), NetnsError> =
            pod.run_in(|| Err(NetnsError::NotFound { path: "x".into() }));
        refused.unwrap_err();
        let panicked = thread::scope(|scope| {
            scope
                .spawn(|| pod.run_in(|| -> Result<(), NetnsError> { panic!("in the pod") }))
                .join()
                .is_err()
        });
        assert!(panicked);
        assert!(link_names().contains(&"outside".to_owned()));
    });
}

#[test]
fn open_namespace_outlives_its_path() {
    isolated(|host| {
        let pod = open(host, "pod1");
        host.delete_pod("pod1").unwrap();
        setup(&plan("cali1", &["10.65.0.2"]), &pod).unwrap();
        assert!(link_names().contains(&"cali1".to_owned()));
    });
}
