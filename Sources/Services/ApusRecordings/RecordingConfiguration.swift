import ApusClientAPI
package import ApusConfiguration
package import ApusCore
package import ApusObjectStore

/// The bounds of recordings, and where they are kept (IV-E2, docs/cluster-recordings.md).
package struct RecordingConfiguration: Sendable, Hashable {
    /// The node's own log. Key `recordings.log_directory`; by default `recording-log` in the data directory.
    package var logDirectory = ""
    /// The largest size of the log, in bytes. Key `recordings.log_bytes_max`.
    package var logByteCountMax = 4 << 30
    /// How often the log is written and synced. Key `recordings.write_interval`.
    package var writeInterval = Duration.milliseconds(250)
    /// A segment ends at the first key frame after this time. Key `recordings.segment_duration`.
    package var segmentDuration = Duration.seconds(10)
    /// The channels that are sealed at the same time. Key `recordings.seals_max`.
    package var sealsMax = 4
    /// Where objects are kept by default: `objects`, beside the file of the records.
    package var objectDirectory = ""
    package var objects = ObjectStoreConfiguration()

    /// How often the node looks for channels to record.
    static let followInterval = Duration.milliseconds(500)
    /// How often a plan is read again.
    static let planInterval = Duration.seconds(2)
    /// How often the account of a device is compared with that of its plan.
    static let accountInterval = Duration.seconds(30)
    /// How often the node looks for channels to seal.
    static let sealInterval = Duration.seconds(1)
    /// A channel whose newest frame is older is sealed to its end.
    static let idleTime = Duration.seconds(5)
    /// Another node than the owner seals frames of this age.
    static let abandonedAge = Duration.seconds(120)
    /// How often a node that is not the owner lets its log forget what is sealed.
    static let releaseInterval = Duration.seconds(5)
    /// How often what is too old is deleted.
    static let purgeInterval = Duration.seconds(60)
    /// The frames of a channel that wait for the log, in bytes.
    static let tapByteCountMax = 8 << 20

    package init() {}
}

extension RecordingConfiguration: ServiceConfiguration {
    /// Reads the keys under `recordings.` and `objects.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        let data = try reader.path("data_directory", default: "")
        let log = try reader.path("recordings.log_directory", default: "")
        logDirectory = log.isEmpty ? data + "/recording-log" : log
        // Beside the records, which the nodes of a machine share as well.
        let records = try reader.path("records.file", default: "records.sqlite")
        let folders = records.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        objectDirectory = folders.joined(separator: "/")
        objectDirectory += "/objects"
        logByteCountMax = try reader.bytes("recordings.log_bytes_max", default: logByteCountMax)
        guard (256 << 20...1 << 50).contains(logByteCountMax) else {
            throw reader.invalid("recordings.log_bytes_max", "at least 256MiB are expected")
        }
        writeInterval = try reader.duration("recordings.write_interval", default: writeInterval)
        guard (.milliseconds(50) ... .seconds(2)).contains(writeInterval) else {
            throw reader.invalid("recordings.write_interval", "50ms to 2s are expected")
        }
        segmentDuration = try reader.duration("recordings.segment_duration", default: segmentDuration)
        guard (.seconds(2) ... .seconds(60)).contains(segmentDuration) else {
            throw reader.invalid("recordings.segment_duration", "2s to 60s are expected")
        }
        sealsMax = try reader.int("recordings.seals_max", default: sealsMax, in: 1...64)
        try objects.read(&reader)
    }
}
