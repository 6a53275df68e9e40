import ApusCore
import Foundation

/// One line of a frame log.
struct FrameLine: Decodable, Sendable {
    var seq: UInt64
    var epoch: UInt32
    var track: Int
    var key: Bool
    var bytes: Int
    var sha256: String
    var at_ns: UInt64
}

/// Counts the frames in a viewer's frame log while it grows.
/// A channel's sequence numbers are dense: within a publisher's epoch each number is one more than the last. A larger
/// step is loss, and a smaller one is a duplicate.
struct FrameTally: Sendable {
    private var follower: LineFollower
    private(set) var frames = 0
    private(set) var lost: UInt64 = 0
    private(set) var doubled = 0
    private(set) var gapLongest = Duration.zero
    private(set) var first: FrameLine?
    private(set) var last: FrameLine?
    /// The hashes by sequence number, of all epochs together; kept only on request.
    private(set) var hashes: [UInt64: String] = [:]
    private let keepsHashes: Bool

    init(path: String, keepsHashes: Bool) {
        follower = LineFollower(path: path, fromStart: true)
        self.keepsHashes = keepsHashes
    }

    /// Reads the lines since the last call.
    mutating func update() {
        let decoder = JSONDecoder()
        while true {
            let lines = follower.newLines()
            guard !lines.isEmpty else { return }
            for line in lines {
                // A line that the end of its writer cut off is ignored.
                guard let frame = try? decoder.decode(FrameLine.self, from: Data(line.utf8)) else { continue }
                count(frame)
            }
        }
    }

    mutating func count(_ frame: FrameLine) {
        frames += 1
        if let last, last.epoch == frame.epoch {
            if frame.seq > last.seq { lost += frame.seq - last.seq - 1 } else { doubled += 1 }
        }
        if let last, frame.at_ns > last.at_ns {
            gapLongest = max(gapLongest, .nanoseconds(Int64(clamping: frame.at_ns - last.at_ns)))
        }
        if first == nil { first = frame }
        last = frame
        if keepsHashes { hashes[frame.seq] = frame.sha256 }
    }

    /// The number of frames that were not sent, or that differ from the sent ones.
    func differing(from sent: FrameTally) -> Int {
        hashes.count { sequence, hash in sent.hashes[sequence].map { $0 != hash } ?? true }
    }
}
