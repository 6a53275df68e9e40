import Foundation

/// Reads what is added to a file, whole lines at a time.
struct LineFollower: Sendable {
    /// The most bytes of one look.
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

    /// The lines since the last look; none where the file is not there yet.
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
