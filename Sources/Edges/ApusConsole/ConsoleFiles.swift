import ApusCore
import ApusCrypto
import CApusConsole

/// A file of the console, within the program.
package struct ConsoleFile: Sendable {
    /// The path of its address, without the first slash.
    package let path: String
    package let contentType: String
    /// A digest of its content, for `ETag`.
    package let tag: String
    package let bytes: [UInt8]
}

/// The pages that every node serves (docs/console.md): hand-written files, embedded at build time.
///
/// Isolation: immutable.
package enum ConsoleFiles {
    /// All files, by path.
    package static let all: [ConsoleFile] = (0..<apus_console_file_count()).map { number in
        // SAFETY: the file is static data of the program, with a path that ends with a zero, and this many bytes.
        let file = apus_console_file_at(number).pointee
        let bytes = Array(UnsafeBufferPointer(start: file.bytes, count: Int(file.byte_count)))
        let path = String(cString: file.path)
        return ConsoleFile(
            path: path, contentType: contentType(of: path),
            tag: Hexadecimal.text(SHA256.hash(data: bytes).prefix(16)), bytes: bytes)
    }

    private static let byPath = Dictionary(uniqueKeysWithValues: all.map { (ExactText($0.path), $0) })

    /// The file at an address, which begins with a slash; nil if there is none. `/` is the first page.
    package static func file(at address: String) -> ConsoleFile? {
        byPath[ExactText(address.utf8.count <= 1 ? "index.html" : String(address.dropFirst()))]
    }

    private static func contentType(of path: String) -> String {
        let types = [
            (".html", "text/html; charset=utf-8"), (".js", "text/javascript; charset=utf-8"),
            (".css", "text/css; charset=utf-8"), (".svg", "image/svg+xml"), (".json", "application/json"),
            (".webmanifest", "application/manifest+json"), (".png", "image/png"), (".ico", "image/x-icon"),
            (".woff2", "font/woff2"),
        ]
        return types.first { path.hasSuffix($0.0) }?.1 ?? "application/octet-stream"
    }
}
