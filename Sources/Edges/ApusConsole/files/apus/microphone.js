// Passes the samples of a microphone to the page.

class Microphone extends AudioWorkletProcessor {
    /** @param {Float32Array[][]} inputs */
    process(inputs) {
        const samples = inputs[0]?.[0];
        if (samples) this.port.postMessage(samples.slice());
        return true;
    }
}

registerProcessor("apus-microphone", Microphone);
