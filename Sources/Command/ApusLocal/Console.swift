import Foundation

/// Output for the user at the terminal.
package enum Console {
    /// Writes a line to standard output without buffering, including to a pipe or a file.
    package static func say(_ line: String) { FileHandle.standardOutput.write(Data((line + "\n").utf8)) }

    /// Writes a line to standard error.
    package static func warn(_ line: String) { FileHandle.standardError.write(Data((line + "\n").utf8)) }
}
