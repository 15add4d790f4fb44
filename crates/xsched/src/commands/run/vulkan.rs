//! Enables the Vulkan layer of the library for a program.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const LAYER: &str = "VK_LAYER_XSCHED_schedule";
const MANIFEST: &str = "VkLayer_xsched.json";
/// The manifest names this variable: the layer is used only if it is set.
const ENABLE: &str = "XSCHED_VULKAN_LAYER";
/// Vulkan's loader searches this directory below each data directory.
const INSTALLED: &str = "vulkan/implicit_layer.d";

/// The variables that make Vulkan's loader use the layer. A program with more rights than its user ignores them.
///
/// The loader finds an installed manifest by itself. The manifest in a build directory, in a wheel or below another prefix is passed
/// as that of an explicit layer: loaders before 1.3.296 have no variable for other directories with implicit layers.
pub(super) fn variables(
    library: &Path,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(ENABLE, OsString::from("1"))];
    if let Some(directory) = manifest_directory(library)
        && !is_searched(&directory, environment("XDG_DATA_DIRS"))
    {
        // The loader ignores the second variable if the first one is set.
        let path = if environment("VK_LAYER_PATH").is_some() { "VK_LAYER_PATH" } else { "VK_ADD_LAYER_PATH" };
        variables.push((path, appended(environment(path), directory.as_os_str())));
        variables.push(("VK_INSTANCE_LAYERS", appended(environment("VK_INSTANCE_LAYERS"), LAYER.as_ref())));
    }
    variables
}

/// The directory of the manifest that was built or installed with the library.
fn manifest_directory(library: &Path) -> Option<PathBuf> {
    let beside = library.parent()?;
    let places = [beside.join("vulkan"), beside.parent()?.join("share").join(INSTALLED)];
    places.into_iter().find(|place| place.join(MANIFEST).is_file())
}

/// Whether Vulkan's loader searches a directory by itself.
fn is_searched(directory: &Path, data_directories: Option<OsString>) -> bool {
    let data =
        data_directories.filter(|data| !data.is_empty()).unwrap_or("/usr/local/share:/usr/share".into());
    std::env::split_paths(&data).any(|data| {
        let searched = data.join(INSTALLED);
        searched == directory || searched.canonicalize().is_ok_and(|searched| searched == directory)
    })
}

/// A list with one more entry at its end, unless it has the entry.
fn appended(list: Option<OsString>, entry: &OsStr) -> OsString {
    let mut list = list.unwrap_or_default();
    if std::env::split_paths(&list).any(|existing| existing == entry) {
        return list;
    }
    if !list.is_empty() {
        list.push(":");
    }
    list.push(entry);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(manifest: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let manifest = tree.path().join(manifest);
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        std::fs::write(manifest, "{}").unwrap();
        tree
    }

    #[test]
    fn manifest_that_the_loader_finds_needs_one_variable() {
        let tree = tree("share/vulkan/implicit_layer.d/VkLayer_xsched.json");
        let library = tree.path().join("lib/libxsched.so");
        let share = tree.path().join("share").into_os_string();
        let searched = |name: &str| (name == "XDG_DATA_DIRS").then(|| share.clone());
        assert_eq!(variables(&library, searched), [(ENABLE, "1".into())]);
        assert_eq!(variables(&library, |_| None).len(), 3, "another prefix");
        assert_eq!(variables(Path::new("/nowhere/libxsched.so"), |_| None), [(ENABLE, "1".into())]);
    }

    #[test]
    fn manifest_in_a_build_directory_is_added_to_the_lists_of_the_user() {
        let tree = tree("vulkan/VkLayer_xsched.json");
        let library = tree.path().join("libxsched.so");
        let directory = tree.path().join("vulkan").into_os_string();
        let value = |environment: &[(&str, &str)], name: &str| {
            let get =
                |name: &str| environment.iter().find(|(set, _)| *set == name).map(|(_, v)| OsString::from(v));
            variables(&library, get).into_iter().find(|(set, _)| *set == name).map(|(_, value)| value)
        };
        assert_eq!(value(&[], "VK_ADD_LAYER_PATH"), Some(directory.clone()));
        assert_eq!(value(&[], "VK_LAYER_PATH"), None);
        let mut both = OsString::from("/mine:");
        both.push(&directory);
        assert_eq!(value(&[("VK_LAYER_PATH", "/mine")], "VK_LAYER_PATH"), Some(both));
        assert_eq!(
            value(&[("VK_INSTANCE_LAYERS", "A")], "VK_INSTANCE_LAYERS"),
            Some(format!("A:{LAYER}").into())
        );
        // A nested `xsched run` adds nothing.
        assert_eq!(value(&[("VK_INSTANCE_LAYERS", LAYER)], "VK_INSTANCE_LAYERS"), Some(LAYER.into()));
    }
}
