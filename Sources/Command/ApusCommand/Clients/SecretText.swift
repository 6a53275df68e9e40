import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Tokens, secrets and passwords that need not stand on the command line, where every user of the machine reads them.
enum SecretText {
    /// The longest one, in bytes.
    static let byteCountMax = 64 << 10

    /// What was given, the first of: the option itself, the file of the option with `-file`, the environment.
    ///
    /// - Throws: 21031 where both options are given or nothing stands in the file, 10021 where it cannot be read.
    static func given(
        _ text: String?, file: String?, variable: String?, name: String
    ) throws(ApusError) -> String? {
        guard text == nil || file == nil else {
            throw ApusError(.badParameter, "give --\(name) or --\(name)-file, not both")
        }
        if let text { return text }
        if let file { return try read(file, name: name) }
        return variable.flatMap { ProcessInfo.processInfo.environment[$0] }.flatMap { $0.isEmpty ? nil : $0 }
    }

    /// The first line of a file; `-` asks at the terminal, or reads standard input where that is none.
    private static func read(_ file: String, name: String) throws(ApusError) -> String {
        let line = file == "-" ? ask(name) : try firstLine(of: file)
        guard let line, !line.isEmpty else {
            throw ApusError(.badParameter, file == "-" ? "no \(name) was typed" : "\(file) holds no \(name)")
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

    /// Asks without showing what is typed.
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
