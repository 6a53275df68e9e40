import ApusCore
import HTTPTypes

/// The names of requests that are carried out, and of responses.
package enum EVSName: String {
    case stateSync = "system.state_sync"
    case exception = "system.exception"
    case textIn = "recognizer.text_in"
    case audioIn = "recognizer.audio_in"
    /// An addition of this project: the same name as that of custom responses.
    case customEvent = "interceptor.custom"
    case speechProgress = "audio_player.tts.progress_sync"
    case playbackProgress = "audio_player.playback.progress_sync"
    case ringProgress = "audio_player.ring.progress_sync"

    package static let ping = "system.ping"
    package static let error = "system.error"
    package static let custom = "interceptor.custom"
    package static let audioOut = "audio_player.audio_out"
    package static let intermediateText = "recognizer.intermediate_text"
    package static let stopCapture = "recognizer.stop_capture"
    /// The format of sound.
    package static let format = "AUDIO_L16_RATE_16000_CHANNELS_1"
    package static let expectReply = "recognizer.expect_reply"

    /// The code of an error that devices react to. From 500 on they end what they record.
    static func code(of code: ErrorCode) -> Int {
        switch Problem.status(of: code).code {
        case 401: 401
        case 403: 403
        case 429, 503, 504: 503
        case 500...: 500
        default: 400
        }
    }
}
