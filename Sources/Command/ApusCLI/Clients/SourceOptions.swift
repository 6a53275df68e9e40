import ApusCore
import ApusDevice
import ApusMedia
import ArgumentParser
import Logging

/// What a client sends.
struct SourceOptions: ParsableArguments {
    @Option(help: "Send this file in a loop, at its own pace.") var file: String?
    @Option(help: "Send another camera's stream: rtsp://USER@HOST/PATH.") var rtsp: String?
    @Option(help: "Read the address of --rtsp from this file, if it has a password; - prompts for it.")
    var rtspFile: String?
    @Option(help: "Read that camera's password from this file; - prompts for it. Default: APUS_RTSP_PASSWORD.")
    var rtspPasswordFile: String?
    @Option(help: "Send a generated picture with a frame counter and a clock: WIDTHxHEIGHT@FPS.")
    var testPattern: String?
    @Option(help: "Send the pictures of this camera of Video4Linux, such as /dev/video0.") var camera: String?
    @Option(help: "Set the camera's size and rate.") var cameraSize = "640x480@25"
    @Option(help: "Send the sound of this capture device of ALSA, such as default.") var microphone: String?
    @Option(help: "Send the sound of this WAV file in a loop.") var wav: String?
    @Option(
        help: """
            Encode sound of a test pattern, a microphone or a WAV file as aac, opus, g711a, g711u, amrNarrow or \
            amrWide: aac@16000.
            """)
    var sound = "aac@48000"

    /// The number of sources that are given. A camera and a sound are one.
    var count: Int {
        [file, rtsp ?? rtspFile, testPattern, camera ?? microphone ?? wav].count { $0 != nil }
    }

    func validate() throws {
        guard microphone == nil || wav == nil else { throw ValidationError("Use one of --microphone and --wav.") }
    }

    /// Nil if none is given.
    ///
    /// - Throws: 10022 for a test pattern, a size or an encoding that cannot be read; as ``SecretText`` for the files
    ///   of a camera's address and password.
    func source(log: Logger) throws(ApusError) -> (any MediaSource)? {
        if let file { return FileSource(path: file, log: log) }
        if let url = try SecretText.given(rtsp, file: rtspFile, variable: nil, name: "rtsp") {
            let password = try SecretText.given(
                nil, file: rtspPasswordFile, variable: "APUS_RTSP_PASSWORD", name: "rtsp-password")
            return RTSPSource(url: url, password: password, log: log)
        }
        let sound = try SoundEncoding(parsing: sound)
        if let testPattern {
            var pattern = try TestPattern(parsing: testPattern)
            pattern.sound = sound
            return TestPatternSource(pattern)
        }
        guard count > 0 else { return nil }
        let size = try TestPattern(parsing: cameraSize)
        let place: SoundInput.Place? = microphone.map { .alsa($0) } ?? wav.map { .wav(path: $0, loops: true) }
        return try CaptureSource(
            video: camera.map {
                CameraInput(path: $0, width: size.width, height: size.height, frameRate: size.frameRate)
            },
            audio: place.map { SoundInput($0, sampleRate: sound.sampleRate) }, sound: sound,
            makeVideoEncoder: { picture throws(ApusError) in
                try PictureEncoder(
                    PictureEncoding(width: picture.width, height: picture.height, frameRate: size.frameRate))
            })
    }
}
