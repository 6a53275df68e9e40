import Foundation

/// Lines for the person at the terminal.
package enum Console {
    /// Writes a line to standard output at once, also where that is a pipe or a file.
    package static func say(_ line: String) { FileHandle.standardOutput.write(Data((line + "\n").utf8)) }
}
