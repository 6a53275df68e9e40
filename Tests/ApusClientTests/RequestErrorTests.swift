import ApusClient
import ApusCore
import Testing

@Suite("Requests whose connection ends")
struct RequestErrorTests {
    @Test("A request may be repeated after what ends only its connection, and not after what ends the session (10008)")
    func ofRequest() {
        for code in ErrorCode.all {
            let error = ApusError(code, "text").ofRequest
            let isSame = [.kicked, .notAllowed, .frameTooLarge, .malformed].contains(code)
            #expect(error.code == (isSame ? code : .linkLost) && error.message == "text", "\(code)")
        }
    }
}
