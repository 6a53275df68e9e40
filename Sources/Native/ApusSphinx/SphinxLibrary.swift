package import ApusCore
import CApusSphinx

/// libpocketsphinx, opened when it is needed: only programs that recognize speech have it.
///
/// Concurrency model: immutable after its creation; any thread may make decoders with it.
package final class SphinxLibrary: @unchecked Sendable {  // SAFETY: its functions are never changed.
    // SAFETY: a table of functions that is never changed or freed.
    let pointer: OpaquePointer

    /// Opens the libraries of Debian's libpocketsphinx3 and libsphinxbase3. They are never closed.
    ///
    /// - Throws: 10021 if a library is missing, or is another version.
    package init(name: String = "libpocketsphinx.so.3", baseName: String = "libsphinxbase.so.3") throws(ApusError) {
        var found: OpaquePointer?
        let result = apus_sphinx_open(name, baseName, &found)
        guard result == 0, let found else {
            throw ApusError(
                .storageFailed,
                "\(name) cannot be opened; install Debian's libpocketsphinx3 and pocketsphinx-en-us")
        }
        pointer = found
    }
}

/// The sentences that a decoder may hear: a graph of states with words between them. State 0 is the start.
///
/// Pure value.
package struct SphinxGraph: Sendable, Equatable {
    /// A transition with a word.
    package struct Arc: Sendable, Hashable {
        package var from: Int32
        package var to: Int32
        /// Its index in ``SphinxGraph/words``.
        package var word: Int32

        package init(from: Int32, to: Int32, word: Int32) { (self.from, self.to, self.word) = (from, to, word) }
    }

    package var stateCount: Int32
    package var final: Int32
    package var words: [String]
    package var arcs: [Arc]

    package init(stateCount: Int32, final: Int32, words: [String], arcs: [Arc]) {
        (self.stateCount, self.final, self.words, self.arcs) = (stateCount, final, words, arcs)
    }
}
