import ApusCore
import ApusHTTP
import NIOCore

/// A text of an EVS device is read within its bounds, and whatever it is, its connection answers with texts that are
/// JSON and asks for one thing for each request.
func fuzzEvs(_ input: [UInt8]) {
    var machine = EVSConnectionStateMachine()
    var actions: [EVSConnectionStateMachine.Action] = []
    machine.connected(token: "token", &actions)
    machine.opened(as: "device", at: .zero, seconds: 0, &actions)
    machine.answered(1, .done, &actions)
    // Each line is a text.
    for line in input.split(separator: UInt8(ascii: "\n")).prefix(64) {
        do throws(ApusError) {
            switch try EVSText(Array(line)) {
            case .request(let request):
                precondition(request.name.utf8.count <= EVSRequest.idByteCountMax, "a name is too long")
                precondition(request.id.utf8.count <= EVSRequest.idByteCountMax, "an id is too long")
                let context = request.contextText
                precondition(context.isEmpty || isJSON(context), "a context is not JSON")
                machine.received(request, sentence: "sentence", &actions)
            case .soundEnded: machine.soundEnded(&actions)
            case .soundCancelled: machine.soundCancelled(&actions)
            }
        } catch {
            machine.receivedWrong(error, &actions)
        }
        machine.received(sound: ByteBuffer(bytes: line), &actions)
        machine.answered(2, .done, &actions)
        for action in actions {
            if case .send(let responses) = action { precondition(isJSON(responses.text), "a response is not JSON") }
        }
        precondition(actions.count < 256, "a text has too many effects")
        precondition(machine.openCount <= EVSConnectionStateMachine.Limits().requestsMax, "too much waits")
        actions = []
    }
}

private func isJSON(_ text: String) -> Bool { JSONValue(ArraySlice(text.utf8), depthMax: 32) != nil }
