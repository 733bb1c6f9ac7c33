//! Empty variables, invalid arguments, and the two generations of command lines.

use std::fs;
use std::os::unix::fs::symlink;

use integration_tests::installation::{BIN, Container, NET};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;

use super::{DEFAULT, failed, succeeded};

#[test]
fn empty_number_variables_yield_defaults_and_empty_texts_stay_empty() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let numbers = [
            "CNI_MTU",
            "LOG_FILE_MAX_SIZE",
            "LOG_FILE_MAX_AGE",
            "LOG_FILE_MAX_COUNT",
            "REQUIRE_MTU_FILE",
        ];
        let outcome = container.run(&numbers.map(|name| (name, ""))).unwrap();
        succeeded(&outcome);
        assert_eq!(container.conf("10-calico.conflist").unwrap(), DEFAULT);
        for name in numbers {
            assert!(
                outcome.stderr.contains(&format!("{name} is empty")),
                "{}",
                outcome.stderr
            );
        }
        succeeded(
            &container
                .run(&[("LOG_LEVEL", ""), ("KUBERNETES_NODE_NAME", "")])
                .unwrap(),
        );
        let conf = container.conf("10-calico.conflist").unwrap();
        assert!(
            conf.contains(r#""log_level": """#) && conf.contains(r#""nodename": """#),
            "{conf}"
        );
    });
}

#[test]
fn empty_boolean_and_name_variables_fail_the_install() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for (name, words) in [
            (
                "UPDATE_CNI_BINARIES",
                "UPDATE_CNI_BINARIES: `` is neither true nor false",
            ),
            ("SLEEP", "SLEEP: `` is neither true nor false"),
            (
                "CNI_CONF_NAME",
                "CNI_CONF_NAME: `` is not the name of a file",
            ),
        ] {
            failed(&container.run(&[(name, "")]).unwrap(), words);
        }
        assert!(container.names(BIN).is_empty() && container.names(NET).is_empty());
    });
}

#[test]
fn invalid_install_arguments_exit_with_2_and_help_lists_the_variables() {
    let plugins = Plugins::locate().unwrap();
    for arguments in [
        &["install", "now"][..],
        &["install", "--root"],
        &["component", "cni", "install", "-x"],
    ] {
        let outcome = plugins.call("calico").args(arguments.iter().copied()).run();
        assert_eq!(
            (outcome.exit, outcome.stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        assert!(
            outcome.stderr.contains("calico install --help"),
            "{}",
            outcome.stderr
        );
    }
    let help = plugins.call("calico").args(["install", "--help"]).run();
    assert_eq!((help.exit, help.stderr.as_str()), (Some(0), ""));
    for name in [
        "CNI_NETWORK_CONFIG_FILE",
        "SKIP_CNI_BINARIES",
        "CALICO_IPV4POOL_CIDR",
        "__SERVICEACCOUNT_TOKEN__",
    ] {
        assert!(help.stdout.contains(name), "{name}");
    }
}

#[test]
fn both_generations_of_install_commands_work() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let install = container.path("install");
        symlink(container.installer(), &install).unwrap();
        let root = container.path("");
        let root = root.display().to_string();
        let by_name = Plugins::locate()
            .unwrap()
            .call("calico")
            .program(&install)
            .args(["--root", root.as_str()]);
        let component = Plugins::locate().unwrap().call("calico").args([
            "component",
            "cni",
            "install",
            "--root",
            root.as_str(),
        ]);
        for call in [by_name, component] {
            let call = call
                .env("SLEEP", "false")
                .env("KUBERNETES_NODE_NAME", "my-node");
            succeeded(&call.run());
            assert_eq!(container.conf("10-calico.conflist").unwrap(), DEFAULT);
            fs::remove_file(container.path(NET).join("10-calico.conflist")).unwrap();
        }
    });
}

#[test]
fn unknown_commands_are_refused_in_spite_of_cni_command() {
    let plugins = Plugins::locate().unwrap();
    for words in [&["component", "felix"][..], &["ctl", "get", "nodes"]] {
        let outcome = plugins
            .call("calico")
            .args(words.iter().copied())
            .env("CNI_COMMAND", "ADD")
            .run();
        assert_eq!(
            (outcome.exit, outcome.stdout.as_str()),
            (Some(1), ""),
            "{words:?}"
        );
        assert!(
            outcome.stderr.contains("unknown command"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn nodename_file_is_written_once() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let file = container.path("var/lib/calico/nodename");
        assert_eq!(fs::read(&file).unwrap(), b"my-node");
        let outcome = container
            .run(&[("KUBERNETES_NODE_NAME", "renamed")])
            .unwrap();
        succeeded(&outcome);
        assert!(
            outcome.stderr.contains("present=\"my-node\""),
            "{}",
            outcome.stderr
        );
        assert_eq!(fs::read(&file).unwrap(), b"my-node");
    });
}
