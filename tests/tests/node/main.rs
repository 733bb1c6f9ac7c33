//! The installation of a node: installer, agent, doctor, removal.

mod adopt;
mod installer_agent;
mod installer_doctor;
mod installer_install;
mod installer_uninstall;
