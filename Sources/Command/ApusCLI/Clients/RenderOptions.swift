import ApusClient
import ApusCore
import ArgumentParser

/// What a client plays and shows, decoded.
struct RenderOptions: ParsableArguments {
    @Option(help: "Play the sound with this playback device of ALSA, such as default.") var speaker: String?
    @Option(help: "Write the sound to this WAV file, decoded.") var playWav: String?
    @Option(help: "Write the pictures to this YUV4MPEG2 file or pipe, decoded.") var playY4m: String?

    var isEmpty: Bool { speaker == nil && playWav == nil && playY4m == nil }

    func validate() throws {
        guard speaker == nil || playWav == nil else {
            throw ValidationError("Use one of --speaker and --play-wav.")
        }
    }

    /// Nil if nothing is played or shown.
    ///
    /// - Throws: 10021 if a file cannot be written; 10022 or 10026 if the device cannot be opened.
    func renderer() throws(ApusError) -> MediaRenderer? {
        guard !isEmpty else { return nil }
        var audio: (any AudioRenderable)?
        if let speaker { audio = try Loudspeaker(device: speaker) }
        if let playWav { audio = try WAVFile(path: playWav) }
        var video: (any VideoRenderable)?
        if let playY4m { video = try Y4MFile(path: playY4m) }
        return try MediaRenderer(audio: audio, video: video)
    }
}
