# Sourced by the scripts that use what registries have.
#
# Who sources this has `skip REASON`, which says why and ends the script well, and `work`,
# a folder of its own that it removes at the end, on the file system of what is fetched.
# Where a registry can not be reached, these skip; whatever else fails is a failure.

pip=(python3 -m pip --disable-pip-version-check --retries 2 --timeout 20)

# fetch_wheel FOLDER REQUIREMENT [OPTION ..]: unpacks a package of PyPI in FOLDER, all or
# nothing, unless it is there.
fetch_wheel() {
  local folder=$1 requirement=$2
  shift 2
  [ -d "$folder" ] && return
  command -v python3 >/dev/null || skip "python3 is not installed"
  "${pip[@]}" --version >/dev/null 2>&1 || skip "pip is not installed"
  if ! "${pip[@]}" install --quiet --root-user-action ignore --no-deps --only-binary :all: \
    --target "$work/fetched" "$@" "$requirement" 2>"$work/log"; then
    # pip says the same of an index that it can not reach and of a package that is
    # not there, so ask for one that is.
    "${pip[@]}" download --quiet --no-deps --dest "$work/probe" pip >/dev/null 2>&1 ||
      skip "the package index can not be reached"
    cat "$work/log" >&2
    echo "error: $requirement can not be fetched from an index that can be reached" >&2
    exit 1
  fi
  mv "$work/fetched" "$folder"
}

# fetch_crates: all crates that the workspace depends on.
fetch_crates() {
  cargo fetch --quiet 2>"$work/log" && return
  grep -qiE 'resolve host|connect|timed out|network' "$work/log" &&
    skip "the registry of crates can not be reached"
  cat "$work/log" >&2
  exit 1
}
