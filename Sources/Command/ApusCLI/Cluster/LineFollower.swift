import Foundation

/// Reads the lines that are appended to a file.
struct LineFollower: Sendable {
    /// The maximum number of bytes of one read.
    static let byteCountMax = 4 << 20

    let path: String
    private var offset: UInt64 = 0
    private var rest = Data()

    init(path: String, fromStart: Bool) {
        self.path = path
        guard !fromStart else { return }
        let attributes = try? FileManager.default.attributesOfItem(atPath: path)
        offset = (attributes?[.size] as? NSNumber)?.uint64Value ?? 0
    }

    /// The complete lines since the last read; none if the file does not exist yet.
    mutating func newLines() -> [String] {
        guard let file = FileHandle(forReadingAtPath: path) else { return [] }
        defer { try? file.close() }
        guard (try? file.seek(toOffset: offset)) != nil, let data = try? file.read(upToCount: Self.byteCountMax) else {
            return []
        }
        offset += UInt64(data.count)
        rest += data
        var parts = rest.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
        rest = Data(parts.popLast() ?? Data())
        return parts.map { String(decoding: $0, as: UTF8.self) }
    }
}
