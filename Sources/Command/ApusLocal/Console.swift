import ApusCore
import Foundation

/// Output for the user at the terminal. Text of devices, accounts and files may be in each line, so characters that
/// could control the terminal are escaped (``UntrustedText/shown(_:)``).
package enum Console {
    /// Writes a line to standard output without buffering, including to a pipe or a file.
    package static func say(_ line: String) { write(line, to: .standardOutput) }

    /// Writes a line to standard error.
    package static func warn(_ line: String) { write(line, to: .standardError) }

    /// A reader that has left, such as `head`, or a full disk ends no verb.
    private static func write(_ line: String, to file: FileHandle) {
        try? file.write(contentsOf: Data((UntrustedText.shown(line) + "\n").utf8))
    }
}
