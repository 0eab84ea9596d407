//! The measured profile of this machine, kept between runs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use shardloom_cluster::{Cluster, Precision, Profile};
use shardloom_fabric::InProcess;
use shardloom_profile::{Options, is_busy, measure, this_machine};

use crate::{Error, Result, model};

/// The file that holds this machine's profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalProfile {
    path: Option<PathBuf>,
}

impl LocalProfile {
    /// The profile in this file, which need not exist yet.
    pub fn at(path: &Path) -> LocalProfile {
        LocalProfile { path: Some(path.to_path_buf()) }
    }

    /// The user's: the file that `SHARDLOOM_PROFILE` names, else `shardloom/profile.toml` in
    /// `XDG_CACHE_HOME`, else in `.cache` of the home folder. Where the environment names none of these, as in some
    /// containers, this machine cannot be measured, and others need no profile of it.
    pub fn of_user() -> LocalProfile {
        LocalProfile::from_variables(|name| env::var_os(name).map(PathBuf::from))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<PathBuf>) -> LocalProfile {
        let variable = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
        if let Some(path) = variable("SHARDLOOM_PROFILE") {
            return LocalProfile { path: Some(path) };
        }
        // The XDG base directory specification has relative paths ignored.
        let cache = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| variable("HOME").map(|home| home.join(".cache")));
        LocalProfile { path: cache.map(|cache| cache.join("shardloom").join("profile.toml")) }
    }

    /// The file.
    ///
    /// # Errors
    /// If the environment names no place for it.
    pub fn path(&self) -> Result<&Path> {
        self.path.as_deref().ok_or(Error::NoProfilePlace)
    }

    /// The profile, if this machine has been measured. One that does not say on what it was measured was
    /// written by hand, and is taken as it is.
    ///
    /// # Errors
    /// If the file exists but cannot be read or holds no profile, or one that was measured on another
    /// processor, with other cores or kernels, or by another version.
    pub fn load(&self) -> Result<Option<Profile>> {
        let Some(path) = &self.path else { return Ok(None) };
        if !path.try_exists().map_err(Error::io("look at", path))? {
            return Ok(None);
        }
        let text = model::read(path)?;
        let place = path.display().to_string();
        let profile = Profile::read(&text, &place).map_err(|source| {
            match Cluster::from_toml(&text).is_ok() {
                true => Error::ProfileOfCluster { path: path.clone() },
                false => Error::Profile { source: Box::new(source) },
            }
        })?;
        if let Some(measured_on) = &profile.measured_on {
            let differences = measured_on.differences(&this_machine()?);
            if !differences.is_empty() {
                return Err(Error::OtherMachine { path: path.clone(), differences });
            }
        }
        Ok(Some(profile))
    }

    /// The profile; measured and kept if this machine has not been measured, or not in all formats, or other programs
    /// disturbed that and do not now.
    ///
    /// `progress` hears what is being measured, and the share of the work that is done, from 0 to 1.
    ///
    /// # Errors
    /// If measuring fails or the file cannot be read or written.
    pub fn load_or_measure(
        &self,
        options: Options,
        progress: &mut dyn FnMut(&str, f64),
    ) -> Result<Profile> {
        match self.load()? {
            Some(profile)
                if has_all_formats(&profile) && (disturbed_percent(&profile) == 0 || is_busy()) =>
            {
                Ok(profile)
            }
            known => self.measure(with_formats_of(known.as_ref(), options), progress),
        }
    }

    /// Measures this machine and keeps the profile. Where other programs disturb that and have ended it is measured
    /// once again, and what they disturbed less is kept.
    ///
    /// # Errors
    /// If measuring fails or the file cannot be written.
    pub fn measure(
        &self,
        options: Options,
        progress: &mut dyn FnMut(&str, f64),
    ) -> Result<Profile> {
        let path = self.path()?;
        require_replaceable(path)?;
        require_writable(path)?;
        let mut profile = measure(&InProcess, options, progress)?;
        // As long as others are at work it would come to the same.
        if disturbed_percent(&profile) > 0 && !is_busy() {
            let again = measure(&InProcess, options, progress)?;
            profile = std::cmp::min_by_key(again, profile, disturbed_percent);
        }
        write_whole(path, &profile.to_toml()?)?;
        Ok(profile)
    }
}

/// What to measure again of a machine: in no fewer formats than before.
fn with_formats_of(known: Option<&Profile>, mut options: Options) -> Options {
    let formats = known.map(|profile| &profile.device.in_format);
    options.scope.fp16 |= formats.is_some_and(|it| it.contains_key(&Precision::Fp16));
    options
}

/// Whether all was measured that is now; what was written by hand has what it is to have.
pub(crate) fn has_all_formats(profile: &Profile) -> bool {
    let formats = &profile.device.in_format;
    let is_whole = !formats.is_empty() && formats.values().all(|it| it.matmul.is_some());
    profile.measured_on.is_none() || is_whole
}

/// Of the processors' time what other programs took while a machine was measured, in percent, if that is enough to
/// matter; 0 otherwise.
pub fn disturbed_percent(profile: &Profile) -> u32 {
    profile.measured_on.as_ref().map_or(0, |it| it.others_percent)
}

/// Sees that a file is a profile, of whatever version, or is not there, or has nothing in it, so that nothing else is
/// lost.
pub(crate) fn require_replaceable(path: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let text = model::read(path).unwrap_or_else(|_| "no text".into());
    let tables = toml::from_str::<toml::Table>(&text);
    let is_profile = tables.is_ok_and(|it| {
        it.is_empty() || ["device", "node"].iter().all(|key| it.contains_key(*key))
    });
    // A cluster's file, or a machine's, says several of these.
    match is_profile && Cluster::from_toml(&text).is_err() {
        true => Ok(()),
        false => Err(Error::ProfileOverOther { path: path.to_path_buf() }),
    }
}

/// Sees that a file can be written before work is done for it.
fn require_writable(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    if path.is_dir() {
        return Err(Error::io("write", path)(std::io::ErrorKind::IsADirectory.into()));
    }
    let probe = path.with_added_extension(format!("{}.writing", std::process::id()));
    let probed = fs::write(&probe, "").and_then(|()| fs::remove_file(&probe));
    probed.map_err(Error::io("write", path))
}

/// Writes a file whole or not at all, should two runs write it at once, one be killed or the disk be full.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let unfinished = path.with_added_extension(format!("{}.writing", std::process::id()));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|error| {
        // The first error is the one to report.
        let _ = fs::remove_file(&unfinished);
        Error::io("write", path)(error)
    })
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::{FormatRates, MatmulPoint, MeasuredMatmul, MeasuredOn};
    use shardloom_profile::Scope;

    use super::*;

    fn place(variables: &[(&str, &str)]) -> LocalProfile {
        let find = |name: &str| {
            let found = variables.iter().find(|(each, _)| *each == name);
            found.map(|(_, value)| PathBuf::from(value))
        };
        LocalProfile::from_variables(find)
    }

    #[test]
    fn the_profile_is_where_the_environment_says() {
        let home = ("HOME", "/home/ada");
        let path =
            |variables: &[(&str, &str)]| place(variables).path().expect("a place").to_owned();
        assert_eq!(path(&[home]), Path::new("/home/ada/.cache/shardloom/profile.toml"));
        let cache = ("XDG_CACHE_HOME", "/cache");
        assert_eq!(path(&[home, cache]), Path::new("/cache/shardloom/profile.toml"));
        let relative = ("XDG_CACHE_HOME", "cache");
        assert_eq!(path(&[home, relative]), path(&[home]));
        assert_eq!(path(&[home, cache, ("SHARDLOOM_PROFILE", "p.toml")]), Path::new("p.toml"));
        assert_eq!(path(&[home, ("SHARDLOOM_PROFILE", "")]), path(&[home]));
        let nowhere = place(&[]);
        assert!(matches!(nowhere.path(), Err(Error::NoProfilePlace)));
        assert!(matches!(nowhere.load(), Ok(None)), "other machines are planned for without it");
    }

    #[test]
    fn a_profile_that_is_none_is_refused_by_path() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let profile = LocalProfile::at(&folder.path().join("profile.toml"));
        assert_eq!(profile.load().expect("absent"), None);
        fs::write(profile.path().unwrap(), "speed = 3").expect("written");
        let error = profile.load().expect_err("no profile");
        assert_eq!(error.kind(), "profile");
        assert!(error.to_string().contains("profile.toml"), "{error}");
        let cluster = Cluster::parse("v100-16g:8").and_then(|it| it.to_toml()).expect("written");
        fs::write(profile.path().unwrap(), cluster).expect("written");
        let error = profile.load().expect_err("a cluster");
        assert!(error.to_string().contains("give it to --cluster"), "{error}");
    }

    #[test]
    fn where_a_profile_cannot_be_kept_is_known_before_it_is_measured() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut is_measured = false;
        let mut hear = |_: &str, _| is_measured = true;
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        // In a file, and a folder itself.
        for place in [file.join("profile.toml"), folder.path().to_path_buf()] {
            let measured = LocalProfile::at(&place).measure(Options::default(), &mut hear);
            assert!(matches!(measured, Err(Error::Io { .. })), "{measured:?}");
        }
        assert!(!is_measured);
        assert!(require_writable(&folder.path().join("new/profile.toml")).is_ok());
        assert_eq!(fs::read_dir(folder.path().join("new")).expect("made").count(), 0);
    }

    #[test]
    fn a_file_is_written_whole_in_folders_that_need_not_exist() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a").join("b").join("profile.toml");
        for text in ["one", "another"] {
            write_whole(&path, text).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
        }
        let beside = fs::read_dir(path.parent().expect("a folder")).expect("it is there");
        assert_eq!(beside.count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn what_is_measured_again_is_measured_in_the_formats_of_before() {
        let fp16 = |known: Option<&Profile>, asked: bool| {
            let scope = Scope { fp16: asked, ..Scope::default() };
            with_formats_of(known, Options { scope, ..Options::default() }).scope.fp16
        };
        let mut profile = Profile::preset("v100-16g").expect("a preset");
        profile.device.in_format.insert(Precision::Bf16, FormatRates::default());
        assert_eq!([fp16(None, false), fp16(None, true)], [false, true]);
        assert_eq!([fp16(Some(&profile), false), fp16(Some(&profile), true)], [false, true]);
        profile.device.in_format.insert(Precision::Fp16, FormatRates::default());
        assert_eq!([fp16(Some(&profile), false), fp16(Some(&profile), true)], [true, true]);
    }

    #[test]
    fn a_profile_measured_in_one_format_only_is_not_all_there_is_and_one_written_by_hand_is() {
        let mut profile = Profile::preset("v100-16g").expect("a preset");
        assert!(has_all_formats(&profile));
        profile.measured_on = Some(this_machine().expect("a machine"));
        assert!(!has_all_formats(&profile));
        let point = MatmulPoint { m: 8, n: 8, k: 8, seconds: 1e-6 };
        let matmul = MeasuredMatmul::new(Precision::Bf16, vec![point]).expect("a rate");
        // Also not if products have no table of their own, as in profiles of some days.
        for (table, is_whole) in [(None, false), (Some(matmul), true)] {
            let rates = FormatRates { matmul: table, ..FormatRates::default() };
            profile.device.in_format.insert(Precision::Bf16, rates);
            assert_eq!(has_all_formats(&profile), is_whole);
        }
    }

    #[test]
    fn a_profile_that_was_measured_elsewhere_is_refused_with_what_differs() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let local = LocalProfile::at(&folder.path().join("profile.toml"));
        let write = |measured_on: Option<MeasuredOn>| {
            let profile = Profile { measured_on, ..Profile::preset("v100-16g").expect("a preset") };
            fs::write(local.path().unwrap(), profile.to_toml().expect("TOML")).expect("written");
        };
        let here = this_machine().expect("a machine");
        for measured_on in [None, Some(here.clone())] {
            write(measured_on.clone());
            let profile = local.load().expect("of this machine").expect("there");
            assert_eq!(profile.measured_on, measured_on);
        }
        let (processor, version) = ("Zuse Z3".to_owned(), "0.0.0".to_owned());
        write(Some(MeasuredOn { processor, version, ..here.clone() }));
        let error = local.load().expect_err("measured elsewhere");
        assert_eq!(error.kind(), "profile");
        let MeasuredOn { processor, version, .. } = here;
        let differences =
            format!("processor Zuse Z3, not {processor}, version 0.0.0, not {version};");
        assert!(error.to_string().contains(&differences), "{error}");
    }
}
