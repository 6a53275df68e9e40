import ApusCore
import ApusDevice
import ArgumentParser
import Logging

/// What a client sends.
struct SourceOptions: ParsableArguments {
    @Option(help: "Send this file in a loop, at its own pace.") var file: String?
    @Option(help: "Send another camera's stream: rtsp://…") var rtsp: String?
    @Option(help: "Send a generated picture with a frame counter and a clock: WIDTHxHEIGHT@FPS.")
    var testPattern: String?

    /// The number of sources that are given.
    var count: Int { [file, rtsp, testPattern].count { $0 != nil } }

    /// Nil if none is given.
    ///
    /// - Throws: 10022 for a test pattern that cannot be read.
    func source(log: Logger) throws(ApusError) -> (any MediaSource)? {
        if let file { return FileSource(path: file, log: log) }
        if let rtsp { return RTSPSource(url: rtsp, log: log) }
        guard let testPattern else { return nil }
        return TestPatternSource(try TestPattern(parsing: testPattern))
    }
}
