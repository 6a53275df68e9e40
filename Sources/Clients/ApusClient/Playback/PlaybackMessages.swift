import ApusContract
package import ApusCore
import Foundation

/// What a player of recordings and a device say to each other, in JSON, as the values and answers of two actions
/// (docs/recordings.md). Times are Unix milliseconds of the device's clock.
package enum PlaybackMessages {
    /// The action that lists recordings.
    package static let listAction = "_recordings"
    /// The action that opens a playback, and controls it.
    package static let playAction = "_playback"
    /// The version of the list.
    package static let version = 1
    /// Recordings in one answer.
    package static let listCountMax = 500
    /// The greatest time in a message: the year 2255.
    package static let timeMax: Int64 = 9_000_000_000_000

    /// Asks for recordings that have a part between two times.
    package struct ListRequest: Codable, Sendable {
        package var source: UInt16
        package var from: Int64
        package var to: Int64

        package init(source: UInt16, from: Int64, to: Int64) { (self.source, self.from, self.to) = (source, from, to) }
    }

    /// Recordings, oldest first.
    package struct List: Codable, Sendable, Equatable {
        package var version = PlaybackMessages.version
        /// Each has a start and an end.
        package var list: [[Int64]]
        /// There are more after the last one.
        package var more: Bool

        package init(_ recordings: [ClosedRange<Int64>], more: Bool) {
            (list, self.more) = (recordings.map { [$0.lowerBound, $0.upperBound] }, more)
        }

        /// - Throws: 21037 if the list is of a later version, 21033 if it is none.
        package init(json: String) throws(ApusError) {
            let bytes = Data(json.utf8)
            struct Version: Codable { var version: Int }
            guard let version = (try? JSONDecoder().decode(Version.self, from: bytes))?.version else {
                throw ApusError(.recordingListInvalid)
            }
            guard version <= PlaybackMessages.version else {
                throw ApusError(
                    .recordingListVersion,
                    "the device has version \(version) of the list of recordings; this app knows "
                        + "\(PlaybackMessages.version)")
            }
            guard let list = try? JSONDecoder().decode(Self.self, from: bytes) else {
                throw ApusError(.recordingListInvalid)
            }
            var last = Int64.min
            for times in list.list {
                guard times.count == 2, (0...PlaybackMessages.timeMax).contains(times[0]), times[0] <= times[1],
                    times[1] <= PlaybackMessages.timeMax, times[0] >= last
                else { throw ApusError(.recordingListInvalid, "the device's recordings are not in order") }
                last = times[0]
            }
            self = list
        }

        package var recordings: [Recording] { list.map { Recording(milliseconds: $0[0]...$0[1]) } }
    }

    package enum Verb: String, Codable, Sendable {
        case open
        case seek
        case pause
        case resume
        case stop
        /// The player is still there.
        case keep
    }

    /// Opens a playback, or controls it.
    package struct Control: Codable, Sendable {
        package var verb: Verb
        /// 32 hexadecimal digits, which the player has chosen.
        package var id: String
        /// Of `open`: the number of the recorded source.
        package var source: UInt16?
        /// Of `open` and `seek`.
        package var at: Int64?

        package init(_ verb: Verb, _ id: String, source: UInt16? = nil, at: Int64? = nil) {
            (self.verb, self.id, self.source, self.at) = (verb, id, source, at)
        }
    }

    /// The answer to `open` and `seek`. Those to the others have no content.
    package struct Opened: Codable, Sendable, Equatable {
        /// The number of the source that the device publishes the recording as.
        package var source: UInt16
        /// Frames of earlier runs are from before.
        package var epoch: UInt32
        /// The recording that is played.
        package var start: Int64
        package var end: Int64

        package init(source: UInt16, epoch: UInt32, recording: ClosedRange<Int64>) {
            (self.source, self.epoch) = (source, epoch)
            (start, end) = (recording.lowerBound, recording.upperBound)
        }
    }

    package static func json(_ value: some Encodable) throws(ApusError) -> String {
        guard let bytes = try? JSONEncoder().encode(value) else { throw ApusError(.internalFailure) }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Nil if the text is not of this type.
    package static func decoded<T: Decodable>(_ json: String, as type: T.Type) -> T? {
        try? JSONDecoder().decode(type, from: Data(json.utf8))
    }
}
