//! Packages the program: a stripped binary with manual pages and completions as a tarball and a Debian package, its debug
//! information apart, and checksums. Everything ends up in `target/dist/packages`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Cargo, workspace_root};

const UNIT: &str = "usr/lib/systemd/system/lazaret.service";
const CONFIGURATION: &str = "etc/lazaret/lazaret.yaml";

/// The arguments of `cargo xtask dist`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dist {
    /// Packages this program instead of building one.
    binary: Option<PathBuf>,
}

impl Dist {
    /// Parses the arguments.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        match arguments {
            [] => Ok(Self::default()),
            [name, path] if name == "--binary" => Ok(Self { binary: Some(path.into()) }),
            _ => Err("dist takes no arguments but --binary FILE".to_owned()),
        }
    }

    /// Builds and packages.
    pub(crate) fn run(&self) -> Result<(), String> {
        let root = workspace_root()?;
        let given = self.binary.as_ref().map(|path| {
            fs::canonicalize(path).map_err(|error| format!("failed to find {}: {error}", path.display()))
        });
        let given = given.transpose()?;
        std::env::set_current_dir(&root)
            .map_err(|error| format!("failed to enter the workspace: {error}"))?;
        for tool in ["tar", "gzip", "objcopy", "strip", "sha256sum", "ldd", "dpkg", "dpkg-deb"] {
            needed(tool)?;
        }
        let binary = match given {
            Some(binary) => binary,
            None => {
                Cargo::new("build --profile dist --locked -p lazaret-cli --bin lazaret").run()?;
                root.join("target/dist/lazaret")
            }
        };
        let package = Package::new(&root, &binary)?;
        package.stage()?;
        package.archive()?;
        package.debian()?;
        package.checksums()?;
        println!("\nthe packages are in {}:", package.out.display());
        print!("{}", read(&package.out.join("SHA256SUMS"))?);
        Ok(())
    }
}

/// One version of the program on its way into packages.
struct Package {
    root: PathBuf,
    /// As it was built, with debug information.
    binary: PathBuf,
    version: String,
    /// The target, such as `x86_64-unknown-linux-gnu`.
    target: String,
    /// The files as they are installed below `/`.
    tree: PathBuf,
    /// The folder of the finished packages.
    out: PathBuf,
}

impl Package {
    fn new(root: &Path, binary: &Path) -> Result<Self, String> {
        // "lazaret 0.1.0", or more behind it.
        let shown = output(Command::new(binary).arg("--version"))?;
        let version = shown.split_whitespace().nth(1).ok_or("the program tells no version")?.to_owned();
        let about = output(Command::new("rustc").arg("-vV"))?;
        let target = about.lines().find_map(|line| line.strip_prefix("host: "));
        let target = target.ok_or("rustc tells no host")?.to_owned();
        let (tree, out) = (root.join("target/dist/tree"), root.join("target/dist/packages"));
        Ok(Self { root: root.to_owned(), binary: binary.to_owned(), version, target, tree, out })
    }

    fn name(&self) -> String {
        format!("lazaret-{}-{}", self.version, self.target)
    }

    /// Puts the installed files together.
    fn stage(&self) -> Result<(), String> {
        for folder in [&self.tree, &self.out] {
            if folder.exists() {
                fs::remove_dir_all(folder)
                    .map_err(|error| format!("failed to empty {}: {error}", folder.display()))?;
            }
            make(folder)?;
        }
        let binary = self.tree.join("usr/bin/lazaret");
        self.copy(&self.binary, "usr/bin/lazaret")?;
        self.split_debug_information(&binary)?;
        let manual = self.tree.join("usr/share/man/man1");
        make(&manual)?;
        run(Command::new(&binary).arg("man").arg(&manual))?;
        for page in entries(&manual)? {
            run(Command::new("gzip").args(["--best", "--no-name"]).arg(page))?;
        }
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/lazaret"),
            ("zsh", "usr/share/zsh/vendor-completions/_lazaret"),
            ("fish", "usr/share/fish/vendor_completions.d/lazaret.fish"),
        ] {
            self.write(path, &output(Command::new(&binary).args(["completion", shell]))?)?;
        }
        let unit = read(&self.root.join("deploy/lazaret.service"))?;
        self.write(UNIT, &unit.replace("/usr/local/bin/lazaret", "/usr/bin/lazaret"))?;
        self.copy(&self.root.join("deploy/lazaret.yaml"), CONFIGURATION)?;
        self.copy(&self.root.join("LICENSE"), "usr/share/doc/lazaret/copyright")?;
        self.copy(&self.root.join("README.md"), "usr/share/doc/lazaret/README.md")?;
        self.copy(&self.root.join("CHANGELOG.md"), "usr/share/doc/lazaret/CHANGELOG.md")?;
        self.copy(&self.root.join("deploy/prometheus/alerts.yml"), "usr/share/doc/lazaret/alerts.yml")
    }

    /// Strips the program, and keeps its debug information in a file of its own, which debuggers find by its name.
    fn split_debug_information(&self, binary: &Path) -> Result<(), String> {
        let debug = self.out.join(format!("{}.debug", self.name()));
        run(Command::new("objcopy")
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .arg(binary)
            .arg(&debug))?;
        run(Command::new("strip").arg("--strip-all").arg(binary))?;
        run(Command::new("objcopy").arg("--add-gnu-debuglink").arg(&debug).arg(binary))
    }

    /// A tarball with a folder of its name.
    fn archive(&self) -> Result<(), String> {
        let archive = self.out.join(format!("{}.tar.gz", self.name()));
        // The same files make the same bytes: sorted, without times and owners.
        run(Command::new("tar")
            .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--transform=s,^[.],{},", self.name()))
            .arg("--gzip")
            .arg("--file")
            .arg(&archive)
            .arg("--create")
            .arg("--directory")
            .arg(&self.tree)
            .arg("."))
    }

    /// A package for Debian and Ubuntu.
    fn debian(&self) -> Result<(), String> {
        let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
        let binary = self.tree.join("usr/bin/lazaret");
        let libraries = libraries(&output(Command::new("ldd").arg(&binary))?);
        let mut packages = BTreeSet::new();
        for library in libraries {
            packages.insert(package_of(&library)?);
        }
        let size = entries_below(&self.tree)?.iter().try_fold(0, |sum, path| {
            let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<u64, String>(sum + metadata.len())
        })?;
        self.write("DEBIAN/control", &control(&self.version, architecture.trim(), &packages, size))?;
        self.write("DEBIAN/conffiles", &format!("/{CONFIGURATION}\n"))?;
        let file = self.out.join(format!("lazaret_{}_{}.deb", self.version, architecture.trim()));
        let built = run(Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .env("SOURCE_DATE_EPOCH", "0")
            .arg(&self.tree)
            .arg(&file));
        // It is no part of the files.
        let removed = fs::remove_dir_all(self.tree.join("DEBIAN"));
        built?;
        removed.map_err(|error| format!("failed to remove the control files: {error}"))
    }

    fn checksums(&self) -> Result<(), String> {
        let mut names: Vec<_> = entries(&self.out)?;
        names.sort();
        let mut command = Command::new("sha256sum");
        command.current_dir(&self.out).args(names.iter().filter_map(|path| path.file_name()));
        let sums = output(&mut command)?;
        fs::write(self.out.join("SHA256SUMS"), sums)
            .map_err(|error| format!("failed to write the checksums: {error}"))
    }

    fn copy(&self, from: &Path, to: &str) -> Result<(), String> {
        let to = self.place(to)?;
        fs::copy(from, to).map(drop).map_err(|error| format!("failed to copy {}: {error}", from.display()))
    }

    fn write(&self, to: &str, text: &str) -> Result<(), String> {
        let to = self.place(to)?;
        fs::write(&to, text).map_err(|error| format!("failed to write {}: {error}", to.display()))
    }

    /// The path of an installed file, in a folder that exists.
    fn place(&self, path: &str) -> Result<PathBuf, String> {
        let path = self.tree.join(path);
        if let Some(folder) = path.parent() {
            make(folder)?;
        }
        Ok(path)
    }
}

/// The control file of the Debian package. The size is in bytes.
fn control(version: &str, architecture: &str, packages: &BTreeSet<String>, size: u64) -> String {
    let depends: Vec<&str> = packages.iter().map(String::as_str).chain(["ca-certificates"]).collect();
    format!(
        "Package: lazaret\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Lazaret developers <lazaret@localhost>\n\
         Installed-Size: {}\n\
         Depends: {}\n\
         Section: net\n\
         Priority: optional\n\
         Description: failure handling for event consumers\n\
         \x20Classifies failures of message handlers, retries them in the order of their keys,\n\
         \x20keeps what fails for good, and replays it safely. Daemon, command line and console.\n",
        size.div_ceil(1024),
        depends.join(", "),
    )
}

/// The paths of the shared libraries in the output of `ldd`.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (_, path) = line.split_once(" => ")?;
        path.split_whitespace().next().filter(|path| path.starts_with('/')).map(PathBuf::from)
    };
    ldd.lines().filter_map(path).collect()
}

/// The Debian package of a shared library.
fn package_of(library: &Path) -> Result<String, String> {
    // The path that dpkg knows may be the one before or behind a link of /lib to /usr/lib.
    let resolved = fs::canonicalize(library).map_err(|error| format!("{}: {error}", library.display()))?;
    let without_usr = resolved.strip_prefix("/usr").map(|path| Path::new("/").join(path)).ok();
    for path in [Some(library.to_owned()), Some(resolved), without_usr].into_iter().flatten() {
        if let Ok(found) = output(Command::new("dpkg").arg("--search").arg(&path))
            && let Some(package) = found.split(':').next()
        {
            return Ok(package.to_owned());
        }
    }
    Err(format!("no Debian package has {}", library.display()))
}

fn needed(tool: &str) -> Result<(), String> {
    let found = Command::new(tool).arg("--version").output();
    found.map(drop).map_err(|error| format!("`{tool}` is needed to make packages: {error}"))
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("failed to make {}: {error}", folder.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

/// The files in a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    listed.map_err(|error| format!("failed to list {}: {error}", folder.display()))
}

/// All files below a folder.
fn entries_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        match path.is_dir() {
            true => files.extend(entries_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("failed to start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed with {status}")) }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("failed to start {command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed with {}: {}", output.status, said.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{command:?} wrote invalid UTF-8: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let parse =
            |words: &[&str]| Dist::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Ok(Dist::default()));
        assert_eq!(parse(&["--binary", "a/b"]), Ok(Dist { binary: Some("a/b".into()) }));
        assert!(parse(&["--binary"]).is_err() && parse(&["fast"]).is_err());
    }

    #[test]
    fn the_libraries_of_a_program_are_found() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibssl.so.3 => /lib/x86_64-linux-gnu/libssl.so.3 (0x00007f)\n\
                   \tlibgone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(libraries(ldd), [PathBuf::from("/lib/x86_64-linux-gnu/libssl.so.3")]);
    }

    #[test]
    fn the_control_file_names_what_the_program_needs() {
        let packages = ["libc6", "libssl3"].map(str::to_owned).into();
        let control = control("1.2.3", "amd64", &packages, 2049);
        assert!(control.contains("\nVersion: 1.2.3\nArchitecture: amd64\n"), "{control}");
        assert!(
            control.contains("\nInstalled-Size: 3\nDepends: libc6, libssl3, ca-certificates\n"),
            "{control}"
        );
        assert!(control.lines().all(|line| !line.is_empty()) && control.ends_with('\n'));
    }
}
