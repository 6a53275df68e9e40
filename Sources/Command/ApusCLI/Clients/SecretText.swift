import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Reads tokens, secrets and passwords without arguments, which every user of the machine can read.
enum SecretText {
    /// The maximum length, in bytes.
    static let byteCountMax = 64 << 10

    /// The given secret, from the first of: the option itself, the file of the option with `-file`, the environment.
    /// - Throws: 21031 if both options are given or the file is empty, 10021 if it cannot be read.
    static func given(
        _ text: String?, file: String?, variable: String?, name: String
    ) throws(ApusError) -> String? {
        guard text == nil || file == nil else {
            throw ApusError(.badParameter, "use --\(name) or --\(name)-file, not both")
        }
        if let text { return text }
        if let file { return try read(file, name: name) }
        return variable.flatMap { ProcessInfo.processInfo.environment[$0] }.flatMap { $0.isEmpty ? nil : $0 }
    }

    /// The first line of a file. `-` prompts at the terminal, or reads standard input if it is not a terminal.
    private static func read(_ file: String, name: String) throws(ApusError) -> String {
        let line = file == "-" ? ask(name) : try firstLine(of: file)
        guard let line, !line.isEmpty else {
            throw ApusError(.badParameter, file == "-" ? "no \(name) was typed" : "\(file) contains no \(name)")
        }
        return line
    }

    private static func firstLine(of file: String) throws(ApusError) -> String? {
        do {
            let handle = try FileHandle(forReadingFrom: URL(fileURLWithPath: file))
            let bytes = try handle.read(upToCount: byteCountMax) ?? Data()
            try handle.close()
            return String(decoding: bytes, as: UTF8.self).split(whereSeparator: \.isNewline).first.map {
                $0.trimmingCharacters(in: .whitespaces)
            }
        } catch {
            throw ApusError(.storageFailed, "\(file) cannot be read: \(error.localizedDescription)")
        }
    }

    /// Prompts without echoing the input.
    private static func ask(_ name: String) -> String? {
        var shown = termios()
        guard isatty(0) == 1, tcgetattr(0, &shown) == 0 else {
            return readLine()?.trimmingCharacters(in: .whitespaces)
        }
        var hidden = shown
        hidden.c_lflag &= ~tcflag_t(ECHO)
        tcsetattr(0, TCSAFLUSH, &hidden)
        defer { tcsetattr(0, TCSAFLUSH, &shown) }
        FileHandle.standardError.write(Data("\(name): ".utf8))
        let line = readLine()
        FileHandle.standardError.write(Data("\n".utf8))
        return line?.trimmingCharacters(in: .whitespaces)
    }
}
