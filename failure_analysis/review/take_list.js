// The list of takes. Only the rows around what can be seen exist, whatever the number of takes.
const ROW_PX = 38;

export default {
  template: `
    <div class="takes" ref="box" @scroll.passive="scrolled">
      <div class="takes-all" :style="{ height: total * ${ROW_PX} + 'px' }">
        <div v-for="(take, i) in takes" :key="take.uid" class="take"
             :class="[take.state, { on: take.uid === selected }]"
             :style="{ top: (first + i) * ${ROW_PX} + 'px' }"
             :data-uid="take.uid" :title="take.says" @click="$emit('pick', take.uid)">
          <span class="number">{{ take.number }}</span>
          <span class="state">{{ take.mark }}</span>
          <span class="what">{{ take.what }}</span>
          <span class="why">{{ take.why }}</span>
        </div>
      </div>
      <div v-if="total === 0" class="nothing">{{ nothing }}</div>
    </div>`,
  props: {
    total: Number,
    first: Number,
    rows: String,
    selected: String,
    nothing: String,
  },
  emits: ["pick", "window"],
  computed: {
    takes() {
      return JSON.parse(this.rows);
    },
  },
  methods: {
    scrolled() {
      const top = Math.floor(this.$refs.box.scrollTop / ROW_PX);
      const bottom = Math.ceil((this.$refs.box.scrollTop + this.$refs.box.clientHeight) / ROW_PX);
      const before = top < this.first && this.first > 0;
      const after = bottom > this.first + this.takes.length && bottom <= this.total;
      if ((before || after) && this.asked !== top) {
        this.asked = top;
        this.$emit("window", top);
      }
    },
    reveal(index) {
      const box = this.$refs.box;
      const above = index * ROW_PX;
      if (above < box.scrollTop || above + ROW_PX > box.scrollTop + box.clientHeight) {
        box.scrollTop = Math.max(0, above - box.clientHeight / 3);
      }
    },
  },
};
